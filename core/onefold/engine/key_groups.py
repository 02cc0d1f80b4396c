"""Key groups: which of `max_parallelism` groups a key is in, and which subtask has the group.

The group is `hash(key) % max_parallelism`. The hash depends on the values alone: it is the same in every process, on
every platform and for every version of Python, so that a snapshot's entries are found again by other subtasks. A
change of it makes snapshots unreadable; a test pins its values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from onefold.core.checks import require
from onefold.core.errors import ConfigError
from onefold.core.values.exact.hashes import Words, hash_of, hashes_of

MAX_PARALLELISM = 128
MAX_PARALLELISM_LIMIT = 1 << 15  # a group is two bytes in RocksDB's keys


def key_groups_of_subtask(subtask: int, subtasks: int, max_parallelism: int = MAX_PARALLELISM) -> range:
    """The contiguous key groups of one subtask; groups differ by at most one in number."""
    _check(subtasks, max_parallelism)
    require(0 <= subtask < subtasks, (subtask, subtasks))
    return range(-(-subtask * max_parallelism // subtasks), -(-(subtask + 1) * max_parallelism // subtasks))


def subtask_of(group: int, subtasks: int, max_parallelism: int = MAX_PARALLELISM) -> int:
    _check(subtasks, max_parallelism)
    return group * subtasks // max_parallelism


def group_of(key: Sequence[Any], max_parallelism: int = MAX_PARALLELISM) -> int:
    """The key group of one key, 0 of none. `groups_of` gives the same for a row with these values."""
    return hash_of(key) % max_parallelism if key else 0


def groups_of(columns: Sequence[pa.Array], max_parallelism: int = MAX_PARALLELISM) -> Words:
    """The key group of every row (uint16), by its values in the key's columns."""
    require(len(columns) > 0, "a key has a column")
    return (hashes_of(columns, len(columns[0])) % np.uint64(max_parallelism)).astype(np.uint16)


def split_by_subtask(
    batch: pa.RecordBatch, key: Sequence[str], max_parallelism: int, subtasks: int
) -> list[pa.RecordBatch]:
    """One batch for each subtask, with its rows in their order; batches may be empty. Nothing is copied for one. Rows
    without a key are of key group 0."""
    _check(subtasks, max_parallelism)
    if subtasks == 1 or not key:
        return [batch, *[batch.slice(0, 0)] * (subtasks - 1)]
    owners = np.arange(max_parallelism) * subtasks // max_parallelism
    owner = owners.astype(np.uint16)[groups_of([batch.column(name) for name in key], max_parallelism)]
    counts = np.bincount(owner, minlength=subtasks)
    if counts.max(initial=0) == batch.num_rows:
        return [batch if count else batch.slice(0, 0) for count in counts] if batch.num_rows else [batch] * subtasks
    ordered = batch.take(pa.array(np.argsort(owner, kind="stable")))
    ends = np.cumsum(counts)
    return [ordered.slice(int(end - count), int(count)) for end, count in zip(ends, counts, strict=True)]


def _check(subtasks: int, max_parallelism: int) -> None:
    if not 1 <= subtasks <= max_parallelism <= MAX_PARALLELISM_LIMIT:
        raise ConfigError(
            "max-parallelism",
            f"{subtasks} subtasks do not share {max_parallelism} key groups: every subtask has at least one, and"
            f" max_parallelism is at most {MAX_PARALLELISM_LIMIT}",
        )
