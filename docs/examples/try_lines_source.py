"""Holds LinesSource against the contract: python try_lines_source.py"""

import tempfile
from functools import partial
from pathlib import Path

from lines_source import LinesSource

from onefold.core.testing import check_source

if __name__ == "__main__":  # the kit imports this script in processes of its own
    path = Path(tempfile.mkdtemp()) / "lines"
    path.touch()

    def add(text: str) -> None:
        with path.open("a") as file:
            file.write(text)

    report = check_source(
        partial(LinesSource, str(path)),
        put=lambda ids: add("".join(f"{number}\n" for number in ids)),  # records with these ids, at the end
        spoil=lambda: add("x\n"),  # a record that cannot be read
        lose=lambda: path.write_text(""),  # all records are gone
    )
    print(report)
