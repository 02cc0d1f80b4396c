"""Holds SqliteSink against the contract: python try_sqlite_sink.py"""

import sqlite3
import tempfile
from functools import partial

from sqlite_sink import SqliteSink

from onefold.core.testing import check_sink

if __name__ == "__main__":
    path = f"{tempfile.mkdtemp()}/rows.db"

    def ask(query: str) -> list[int]:
        with sqlite3.connect(path) as db:
            return [value for (value,) in db.execute(query)]

    report = check_sink(
        partial(SqliteSink, path),
        rows=lambda: ask("SELECT id FROM rows"),  # what a reader sees
        prepared=lambda: ask("SELECT count(*) FROM onefold_stage")[0],  # what waits there, unseen
        make_sibling=partial(SqliteSink, path, name="another"),
    )
    print(report)
