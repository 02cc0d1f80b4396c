"""The unique ids of delivery="keyed": where a row has its id, where its record carries it, and whether they
grow within each source: a reader drops an id that is not above the last one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.errors import BadRecord, ConfigError, SchemaMismatch
from onefold.sinks.kafka.encoding import ROWS_MAX, EncodedRecords, Header, RecordEncoding


@dataclass(frozen=True, slots=True)
class Ids:
    """`columns`: one with the id itself, or several, `a, b, n`, of which it is made as `a/b:n`. `header`: the header
    that carries it; None: it is the record's key."""

    columns: tuple[str, ...] = ()
    header: str | None = None

    @property
    def source(self) -> tuple[str, ...]:
        """The columns that name what an id's number counts; none where ids are no SOURCE:NUMBER that is known of."""
        return self.columns[:-1]

    @property
    def number(self) -> tuple[str, ...]:
        return self.columns[-1:] if self.source else ()

    def check_settings(self, encoding: RecordEncoding) -> None:
        """Raise ConfigError for what makes no sense with any rows."""
        if len(set(self.columns)) != len(self.columns) or not all(isinstance(n, str) and n for n in self.columns):
            raise ConfigError("option-value", f"id={self.columns!r} must name columns, each once")
        if self.header is not None and (not isinstance(self.header, str) or not self.header):
            raise ConfigError("option-value", f"id_header={self.header!r} must name a header")
        if encoding.format == "raw":
            if self.columns:
                raise ConfigError(
                    "options-conflict",
                    "id= goes with format='json'; with format='raw' the rows' key is the id, or id_header=",
                )
            return
        if not self.columns:
            raise ConfigError(
                "option-missing",
                "delivery='keyed' needs id=, the columns that make each row's unique id: a text, or two or more "
                "columns of which the last is a number that grows, such as ('kafka_topic_id', "
                "'kafka_partition', 'kafka_offset')",
            )
        if self.header is None and encoding.key:
            raise ConfigError(
                "option-missing",
                "the id is the record's key, unless id_header= names a header for it: then give key= too",
            )
        if self.header in encoding.headers:
            raise ConfigError(
                "options-conflict", f"headers= has {self.header!r}, which id_header= is to carry: rename one"
            )

    def check(self, encoding: RecordEncoding, schema: pa.Schema) -> None:
        """Raise SchemaMismatch unless rows of this schema have ids."""
        if encoding.format == "raw":
            where = "key" if self.header is None else "headers"
            if where not in schema.names:
                raise SchemaMismatch(
                    "column-missing", f"the records' ids are to be in {where}, and the rows have no such column"
                )
            return
        for name in self.columns:
            if name not in schema.names:
                raise SchemaMismatch(
                    "column-missing", f"id names {name!r}, and the rows have {', '.join(schema.names)}"
                )
            kind = schema.field(name).type
            is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
            is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
            if not (is_text or pa.types.is_integer(kind) or (is_bytes and len(self.columns) == 1)):
                raise SchemaMismatch(
                    "column-type", f"id names {name!r}, which is {kind}: ids are texts and integers, or one of bytes"
                )
        if len(self.columns) > 1 and not pa.types.is_integer(schema.field(self.columns[-1]).type):
            raise SchemaMismatch(
                "column-type",
                f"id ends with {self.columns[-1]!r}, which is {schema.field(self.columns[-1]).type}: of several "
                "columns the last is an integer that grows within what the others name",
            )

    def records(self, encoding: RecordEncoding, batch: pa.RecordBatch, order: IdOrder) -> Iterator[EncodedRecords]:
        """The rows of a batch whose schema was checked, in order, each record with its id.

        Raises BadRecord for a row without one, and for ids of several columns that don't go on from `order`.
        """
        for start in range(0, batch.num_rows, ROWS_MAX):
            rows = batch.slice(start, ROWS_MAX)
            for records in encoding.records(rows):
                yield self._in_raw(records) if encoding.format == "raw" else self._in(records, self._ids(rows, order))

    def _in(self, records: EncodedRecords, ids: list[bytes | None]) -> EncodedRecords:
        if None in ids or b"" in ids:
            raise BadRecord(
                "id-missing",
                f"a row has no id: {', '.join(self.columns)} must be neither null nor empty in any row, since readers "
                "tell records apart by it. Filter such rows before the sink, or mend them",
            )
        if self.header is None:
            return replace(records, keys=ids)
        others: list[list[Header] | None] = records.headers or [None] * len(ids)
        return replace(records, headers=[[*(h or ()), (self.header, id)] for h, id in zip(others, ids, strict=True)])

    def _in_raw(self, records: EncodedRecords) -> EncodedRecords:
        """The rows bring them: only look that each does."""
        if self.header is None:
            ids = records.keys or [None]
        else:
            ids = [dict(pairs or ()).get(self.header) for pairs in records.headers or [None]]
        if None in ids or b"" in ids:
            where = "key" if self.header is None else f"header {self.header!r}"
            raise BadRecord(
                "id-missing", f"a row has no id in its {where}, by which readers tell records apart: filter or mend it"
            )
        return records

    def _ids(self, batch: pa.RecordBatch, order: IdOrder) -> list[bytes | None]:
        texts = [_texts(batch.column(name)) for name in self.columns]
        for name, parts in zip(self.source[1:], texts[1:], strict=False):
            if pc.any(pc.match_substring(parts, "/")).as_py():
                raise BadRecord(
                    "id-with-slash",
                    f"a row's {name} has a slash, which stands between the parts of an id: another row could get the"
                    f" same. Replace it, or name {name!r} first in id=, where slashes are allowed",
                )
        if len(texts) > 1:
            source = pc.binary_join_element_wise(*texts[:-1], "/") if len(texts) > 2 else texts[0]
            texts = [pc.binary_join_element_wise(source, texts[-1], ":")]
            if not texts[0].null_count:
                order.check(source, batch.column(self.columns[-1]))
        ids: list[bytes | None] = texts[0].cast(pa.binary()).to_pylist()
        return ids


def _texts(column: pa.Array) -> pa.Array:
    return (
        column if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type) else column.cast(pa.string())
    )


NUMBER_MAX = 2**63 - 1


class IdOrder:
    """The order of the ids of one attempt: remembers each source's last number."""

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
