"""Reads the positions of a streaming query's sources from its checkpoint, whose format is Spark's.

`offsets/N` says where batch N ends, and is written before the batch runs; `commits/N` says that it is done. Where the
first batch began is in `sources/S/0`, for those of Spark's own sources that log it, and in the offsets of ours.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from onefold.core.errors import CheckpointMismatch, ConfigError
from onefold.core.positions import Positions
from onefold.core.protocol.effects import ListFolder, Protocol, ReadFile, retry
from onefold.core.protocol.recovery import Committed
from onefold.core.values.plain import plain, shown_url
from onefold.store.job.offset_json import StreamOffset, parse_offsets

SOURCES_MAX = 64


def end_of(root: str, batch_id: int, clocks: Collection[str] = ()) -> Protocol[Positions | None]:
    """Where batch `batch_id` ends, with those of its `clocks` that have begun; None if that isn't planned."""
    end = yield from _planned(root, batch_id, clocks)
    return None if end is None else end.without_begun()


def last_committed(root: str) -> Protocol[Committed | None]:
    """The last batch that the checkpoint holds as done; None for a new checkpoint."""
    done = yield from _batches(f"{root}/commits")
    end = (yield from end_of(root, max(done))) if done else None
    if end is None:
        return None
    text: str | None = yield from retry(ReadFile(f"{root}/metadata"))
    return Committed(query_id_of(text or "{}", root), max(done), end)


def query_id_of(metadata: str, root: str) -> str:
    """The query's id, by the text of the file `metadata` of the checkpoint at `root`. Raises CheckpointMismatch for
    what Spark has not written."""
    try:
        return str(json.loads(metadata).get("id", ""))
    except (ValueError, AttributeError, RecursionError) as error:
        raise CheckpointMismatch(
            "checkpoint-damaged",
            f"the file 'metadata' of the checkpoint at {shown_url(root)} does not say which query's it is:"
            f" {plain(str(error))}. Put the checkpoint back from a copy; or start with a new, empty checkpoint"
            " directory and starting_offsets='ledger'",
        ) from error


def end_of_running(root: str, batch_id: int, clocks: Collection[str] = ()) -> Protocol[Positions]:
    """Where the batch ends that runs now."""
    end = yield from end_of(root, batch_id, clocks)
    if end is None:
        raise CheckpointMismatch(
            "offsets-file-missing",
            f"the checkpoint at {shown_url(root)} has no offsets/{batch_id}, though Spark runs that batch: something"
            " deletes files there. Stop it, and start with a new checkpoint and starting_offsets='ledger'",
        )
    return end


def end_before(root: str, batch_id: int, clocks: Collection[str] = ()) -> Protocol[Positions | None]:
    """Where the batch before `batch_id` ends; Spark's batch ids can skip. None for the first batch."""
    if batch_id == 0:
        return None
    before = yield from end_of(root, batch_id - 1, clocks)
    if before is not None:
        return before
    logged = yield from _batches(f"{root}/offsets")
    earlier = [number for number in logged if number < batch_id]
    if not earlier:
        raise CheckpointMismatch(
            "offsets-file-missing",
            f"the checkpoint at {shown_url(root)} has no offsets before batch {batch_id}: a part of it was deleted."
            " Start the query with a new, empty checkpoint directory and starting_offsets='ledger'",
        )
    return (yield from end_of(root, max(earlier), clocks))


def first_start(root: str, batch_id: int, end: Positions) -> Protocol[Positions]:
    """Where the query's first batch began, which this one is and which ends at `end`.

    Sources of ours say it in the batch's own offsets; Spark's own Kafka sources log it in `sources/S/0`.
    """
    if (began := (yield from _stream_began(root, batch_id))) is not None:
        return began
    planned = (yield from _planned(root, batch_id)) or Positions()
    ours = planned.begun()
    logged: dict[str, int | str] = {}
    for number in range(SOURCES_MAX):
        text: str | None = yield from retry(ReadFile(f"{root}/sources/{number}/0"))
        if text is None:
            break
        _version, _, body = text.partition("\n")
        try:
            found = parse_offsets([body])
        except ValueError:  # another kind of source keeps another kind of log there
            continue
        logged |= {name: offset for name, offset in found.items if not name.startswith("#")}
    known = planned.tells_begin_of() | Positions.of(logged).topics().keys()
    if missing := sorted(end.topics().keys() - known):
        raise ConfigError(
            "batch-start-unknown",
            f"batch {batch_id} was planned without a word of where it began in {', '.join(missing)}: by a source"
            " that Spark logs no start of. Start the query with a new, empty checkpoint directory, and read the topic"
            " by the format onefold_kafka, or let a flow do it: Flow(...).source(KafkaSource(...))",
        )
    return Positions.of({**dict(ours.items), **logged}, ours.marks)


def _planned(root: str, batch_id: int, clocks: Collection[str] = ()) -> Protocol[Positions | None]:
    path = f"{root}/offsets/{batch_id}"
    text: str | None = yield from retry(ReadFile(path))
    return None if text is None else positions_in(text, path, clocks)


def _stream_began(root: str, batch_id: int) -> Protocol[Positions | None]:
    """Where a flow's stream began, whose batch it is; None of another query."""
    text: str | None = yield from retry(ReadFile(f"{root}/offsets/{batch_id}"))
    lines = (text or "").split("\n")
    offsets = [StreamOffset.of(json.loads(line)) for line in lines[2:] if line.startswith("{")]
    return next((offset.began for offset in offsets if offset is not None), None)


def _batches(folder: str) -> Protocol[list[int]]:
    names: Sequence[str] = yield from retry(ListFolder(folder))
    return [int(name) for name in names if name.isdigit()]


def positions_in(text: str, path: str, clocks: Collection[str] = ()) -> Positions:
    """The positions in the text of `offsets/N`, at `path`. Raises ConfigError for another format."""
    version, _, rest = text.partition("\n")
    if version.strip() != "v1":
        raise ConfigError(
            "offset-log-format",
            f"{path} has the format {version.strip()!r}, and onefold reads 'v1': set"
            " spark.sql.streaming.queryEvolution.enableSourceEvolution=false and start with a new checkpoint",
        )
    metadata, *sources = rest.strip("\n").split("\n")
    positions = parse_offsets([None if line in ("-", "") else line for line in sources])
    times = json.loads(metadata) if clocks else {}
    begun = {name: str(times[name]) for name in clocks if times.get(name)}
    return Positions.of({**dict(positions.items), **begun}, positions.marks)
