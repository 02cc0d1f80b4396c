"""Checks that the ids of a task grow within each source: a reader drops an id that is not above the last one."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.errors import BadRecord

__all__ = ["IdOrder"]

NUMBER_MAX = 2**63 - 1


class IdOrder:
    """Of one attempt: remembers each source's last number."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def check(self, sources: pa.Array, numbers: pa.Array) -> None:
        """Raise BadRecord unless each source's numbers go on from the last one, upwards. Neither array has nulls."""
        if len(numbers) and (largest := pc.max(numbers).as_py()) > NUMBER_MAX:
            raise BadRecord(
                "id-number-too-high",
                f"the id {sources[pc.index(numbers, largest).as_py()]}:{largest} has a number above {NUMBER_MAX}, and "
                "no reader keeps one as the highest. Make one text column of the ids, for readers with IdsWithin",
            )
        named = sources.dictionary_encode()
        rows = pa.table({"code": named.indices, "row": range(len(sources)), "number": numbers.cast(pa.int64())})
        rows = rows.sort_by([("code", "ascending"), ("row", "ascending")]).combine_chunks()
        codes, ordered = rows["code"].chunk(0), rows["number"].chunk(0)
        is_same = pc.equal(codes[1:], codes[:-1])
        falls = pc.and_(is_same, pc.less_equal(ordered[1:], ordered[:-1]))
        if falls.true_count:
            at = pc.index(falls, True).as_py()
            raise self._fell(named.dictionary[codes[at].as_py()].as_py(), ordered[at].as_py(), ordered[at + 1].as_py())
        begins = [0, *(i + 1 for i in pc.indices_nonzero(pc.invert(is_same)).to_pylist())]
        firsts = ordered.take(begins).to_pylist()
        lasts = ordered.take([*(i - 1 for i in begins[1:]), len(ordered) - 1]).to_pylist()
        for source, first, last in zip(named.dictionary.to_pylist(), firsts, lasts, strict=True):
            before = self._last.get(source, -1)
            if first <= before:
                raise self._fell(source, before, first)
            self._last[source] = last

    @staticmethod
    def _fell(source: str, before: int, then: int) -> BadRecord:
        return BadRecord(
            "id-out-of-order",
            f"the id {source}:{then} comes after {source}:{before} in one task, and a reader that keeps the highest"
            " number of each source, from 0 on, would drop it unseen. Sort the rows of a source within its task by the"
            " last column of id=, and give each row an id of its own; or make one text column of the ids, for readers"
            " with IdsWithin",
        )
