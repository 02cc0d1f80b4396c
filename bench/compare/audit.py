"""What the tables of a contestant must have, once all records are in, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.compare.job import ACCOUNTS, Job

__all__ = ["Audit", "audited"]


@dataclass(frozen=True)
class Audit:
    """Records whose row is lost, rows that are there once more, and keys whose totals are not those of the records."""

    lost: int
    doubled: int
    wrong_totals: int

    @property
    def is_exact(self) -> bool:
        return self == Audit(0, 0, 0)


def audited(sql: Callable[[str], list[Any]], job: Job, records: int, partitions: int) -> Audit:
    """The records are those of the numbers below `records`."""
    rows, distinct, known = sql(
        f"SELECT count(*), count(DISTINCT id), count(DISTINCT id) FILTER (WHERE id BETWEEN 0 AND {records - 1})"
        f" FROM {job.rows_table}"
    )[0]
    sent = (
        f"SELECT number / {partitions} % {ACCOUNTS} AS account, count(*) AS n, sum(number) AS total"
        f" FROM generate_series(0, {records - 1}) AS number GROUP BY 1"
    )
    wrong = sql(
        f"SELECT count(*) FROM ({sent}) AS sent FULL JOIN {job.totals_table} AS found USING (account)"
        " WHERE (sent.n, sent.total) IS DISTINCT FROM (found.n, found.total)"
    )[0][0]
    if distinct != known:
        raise RuntimeError(f"{job.rows_table} has rows that nobody sent")
    return Audit(records - known, rows - distinct, wrong)
