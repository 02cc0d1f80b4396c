"""Positions as JSON, as a query's checkpoint logs them: by topic, `{"orders": {"0": 17}}`, which sources of topics
take, or those of all sources of a flow."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from onefold.core.errors import ConfigError
from onefold.core.positions import MARKS, Offset, Positions

_FLOW = "onefold"


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The joined positions of a flow's sources, `at`. `began` is where their stream began, which Spark logs of no
    Python source; None in its very first offset. `added` is where those begin that came later. `ended` and `idle_ms`
    are of event time: the sources that have ended, and after how long one is idle, by their uids. Where these alone
    change, a batch without records is due, in which operators hear of it."""

    at: Positions
    began: Positions | None = None
    added: Positions = field(default_factory=Positions)
    ended: frozenset[str] = frozenset()
    idle_ms: Mapping[str, int | None] = field(default_factory=dict)

    @classmethod
    def of(cls, value: object) -> StreamOffset | None:
        """None for what is no offset of a flow's. Raises ValueError for what no positions are."""
        if not isinstance(value, dict) or not value.keys() >= {_FLOW, "added"}:
            return None
        began = value.get("began")
        return cls(
            Positions.from_flat(value[_FLOW]),
            None if began is None else Positions.from_flat(began),
            Positions.from_flat(value["added"]),
            frozenset(value.get("ended", ())),
            value.get("idle_ms", {}),
        )

    def value(self) -> dict[str, Any]:
        """Always in one order: Spark compares the texts."""
        began = {} if self.began is None else {"began": _flat(self.began)}
        ended = {"ended": sorted(self.ended)} if self.ended else {}
        idle = {"idle_ms": dict(sorted(self.idle_ms.items()))} if self.idle_ms else {}
        return {_FLOW: _flat(self.at), **began, "added": _flat(self.added), **ended, **idle}


def parse_offsets(texts: Iterable[str | None]) -> Positions:
    """The positions of a query whose sources log these texts: one JSON text a source, None where it has no data.

    Those of a flow's stream are as they are. `{"orders": {"0": 17}}` becomes `orders/0`, with the topic's marks. Any
    other JSON keeps its path behind the source's number: `#1/logOffset`. Raises ConfigError where two sources read one
    partition.
    """
    flat: dict[str, Offset] = {}
    for number, text in enumerate(texts):
        if text is None:
            continue
        value = json.loads(text)
        stream = StreamOffset.of(value)
        own = (
            _leaves(value, "" if _is_by_topic(value) else f"#{number}") if stream is None else _flat(stream.at).items()
        )
        for name, offset in own:
            if name in flat:
                raise ConfigError(
                    "topic-read-twice",
                    f"two streams of this query read {name!r}, so its positions are ambiguous: read it once, and"
                    " neither unite nor join the DataFrame with itself, for which Spark reads it twice (explode makes"
                    " several rows of one)",
                )
            flat[name] = offset
    return Positions.from_flat(flat)


def _flat(positions: Positions) -> dict[str, Offset]:
    return {**dict(positions.items), **dict(positions.marks)}


def _is_by_topic(value: object) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(
            isinstance(partitions, dict)
            and partitions.keys() - {*MARKS}
            and all(isinstance(o, str if name in MARKS else int) for name, o in partitions.items())
            for partitions in value.values()
        )
    )


def _leaves(value: object, path: str) -> Iterable[tuple[str, Offset]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}/{key}" if path else str(key))
    elif isinstance(value, int | str):
        yield path, value
    else:
        yield path, json.dumps(value, sort_keys=True)
