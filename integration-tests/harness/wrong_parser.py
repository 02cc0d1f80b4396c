"""A source whose parser makes a mistake."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.source import Part, Split
from onefold.sources.kafka import KafkaSource


@dataclass(frozen=True)
class OneCentMore(KafkaSource):
    """Reads one amount wrongly."""

    def read(self, split: Split, *, guarded: bool = False) -> Iterator[Part]:
        for part in super().read(split, guarded=guarded):
            at = part.rows.schema.get_field_index("amount")
            amounts = part.rows.column(at)
            is_it = pc.equal(amounts, pa.scalar(1337, amounts.type))
            more = pc.add(amounts, pa.scalar(1, amounts.type)).cast(amounts.type)
            yield Part(part.rows.set_column(at, part.rows.schema.field(at), pc.if_else(is_it, more, amounts)), part.bad)
