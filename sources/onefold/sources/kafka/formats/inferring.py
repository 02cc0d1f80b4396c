"""Finds a schema: of JSON in a bounded sample of the topics, of Avro in a registry.

The answer depends on the time. So a pipeline keeps the first one in its checkpoint store; a data source, which has no
such store, asks the user to paste it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from onefold.clients.kafka.client_roles import CONSUMER
from onefold.core.errors import ConfigError
from onefold.core.values.ddl import ddl_of
from onefold.sources.kafka.fetching.fetcher import fetch
from onefold.sources.kafka.offsets import OffsetRange
from onefold.sources.kafka.source_options import KafkaSourceConfig

SAMPLE_MAX = 1_000  # records, over all partitions
_LONG = range(-(2**63), 2**63)


def find_schema(source: KafkaSourceConfig) -> str:
    """What the source's settings leave open: the DDL of its JSON, or the schema of its Avro. Asks the servers."""
    if source.format == "avro":
        from onefold.sources.kafka.formats.avro.schema_registry import registry

        assert source.registry is not None, source
        return registry(source.registry, source.timeout_s).latest(f"{source.topics[0]}-value")
    values = _sample(source)
    found = ddl_of(infer(values))
    CONSUMER.logger.warning("%s: schema inferred from %d records: %s", source.subscription, len(values), found)
    return found


def infer(values: Iterable[bytes | None]) -> pa.Schema:
    """The columns of JSON objects. Raises `ConfigError` where two records can't be of one schema, and for no record.

    Whole numbers are long, or decimal(38,0) beyond it; others double; texts string, also where they look like dates; a
    field that is always null is a string, and said to be so. What is no JSON object is passed over.
    """
    kind: Any = None
    for value in values:
        try:
            record = json.loads(value or b"")
        except (ValueError, RecursionError):  # the latter of one that is nested too deeply
            continue
        if isinstance(record, dict):
            kind = _merged(kind, _kind(record, ""), "")
    if kind is None or not len(kind):
        raise ConfigError(
            "schema-not-inferred",
            "there is no JSON object among the first records to infer a schema from: give a schema",
        )
    return pa.schema([(name, _arrow_type(inner, name)) for name, inner in kind.items()])


def _sample(source: KafkaSourceConfig) -> list[bytes | None]:
    """The first values of each partition."""
    broker = source.broker()
    topics = source.subscription.find(broker)
    partitions = [(topic, number) for topic, found in topics.items() for number in found.partitions]
    first, end = broker.earliest(partitions), broker.latest(partitions)
    each = max(1, SAMPLE_MAX // max(1, len(partitions)))
    values = []
    for topic, number in partitions:
        start = first[topic, number]
        wanted = OffsetRange(topic, number, start, min(start + each, end[topic, number]))
        for records in fetch(
            source.bootstrap_servers,
            source.client_config,
            wanted,
            timeout_s=source.timeout_s,
            compiled=source.compiled_fetch,
        ):
            values += [value for index, value in enumerate(records.values) if index not in records.too_large]
    return values


# While it is inferred, a type is None (only nulls so far), an Arrow type, a dict (an object), or a one-item list.
def _kind(value: Any, where: str) -> Any:
    if value is None:
        return None
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if value in _LONG else pa.decimal128(38, 0)
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, str):
        return pa.string()
    if isinstance(value, list):
        inner: Any = None
        for item in value:
            inner = _merged(inner, _kind(item, f"{where}[]"), f"{where}[]")
        return [inner]
    return {name: _kind(item, f"{where}.{name}".lstrip(".")) for name, item in value.items()}


def _merged(one: Any, other: Any, where: str) -> Any:
    if one is None or other is None or one == other:
        return other if one is None else one
    if isinstance(one, dict) and isinstance(other, dict):
        names = [*one, *(name for name in other if name not in one)]
        return {name: _merged(one.get(name), other.get(name), f"{where}.{name}".lstrip(".")) for name in names}
    if isinstance(one, list) and isinstance(other, list):
        return [_merged(one[0], other[0], f"{where}[]")]
    numbers = [pa.int64(), pa.decimal128(38, 0), pa.float64()]
    if one in numbers and other in numbers:
        return max(one, other, key=numbers.index)
    raise ConfigError(
        "schema-not-inferred",
        f"no schema fits the first records: {where} is {_word(one)} in some and {_word(other)} in others. Give a"
        " schema",
    )


def _arrow_type(kind: Any, where: str) -> pa.DataType:
    if kind is None:
        logging.getLogger("onefold").warning("the field %s is null in every record of the sample: string", where)
        return pa.string()
    if isinstance(kind, list):
        return pa.list_(_arrow_type(kind[0], f"{where}[]"))
    if isinstance(kind, dict):
        if not kind:
            raise ConfigError(
                "schema-not-inferred", f"{where} is an empty object in every record of the sample: give a schema"
            )
        return pa.struct([(name, _arrow_type(inner, f"{where}.{name}")) for name, inner in kind.items()])
    return kind


def _word(kind: Any) -> str:
    return "an object" if isinstance(kind, dict) else "an array" if isinstance(kind, list) else str(kind)
