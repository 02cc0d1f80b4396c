"""Each sink's constructor takes the fields of one frozen model, and says what it does not take."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest
from harness.errors import raises

from onefold.core.errors import ConfigError
from onefold.sinks import HBaseSink, KafkaSink, PostgresSink, SqlSink
from onefold.sinks.hbase.sink_options import HBaseSinkConfig
from onefold.sinks.kafka.sink_options import KafkaSinkConfig
from onefold.sinks.postgres.sink_options import PostgresSinkConfig
from onefold.sinks.staged.table_options import SqlSinkConfig

SINKS = {
    HBaseSink: (HBaseSinkConfig, ("localhost:9090", "t")),
    KafkaSink: (KafkaSinkConfig, ("t",)),
    PostgresSink: (PostgresSinkConfig, ("postgresql://h/d", "t")),
    SqlSink: (SqlSinkConfig, ("sqlite:////tmp/d.db", "t")),
}


@pytest.mark.parametrize("sink", SINKS)
def test_the_constructor_takes_the_fields_of_the_model(sink: Any) -> None:
    model, positional = SINKS[sink]
    given = inspect.signature(sink.__init__).parameters
    fields = {field.name: field for field in dataclasses.fields(model)}
    assert list(given)[1:] == list(inspect.signature(model).parameters) and fields.keys() == {*given} - {"self"}
    assert [p.name for p in given.values() if p.kind is p.POSITIONAL_OR_KEYWORD] == [*fields][: len(positional)]
    for name, field in fields.items():
        is_simple = field.default is not dataclasses.MISSING
        assert not is_simple or given[name].default == field.default


@pytest.mark.parametrize("sink", SINKS)
def test_an_option_that_there_is_not_is_refused_with_the_nearest_one(sink: Any) -> None:
    _, positional = SINKS[sink]
    with raises(ConfigError, "option-unknown", f"{sink.__name__}"):
        sink(*positional, namee="x")
    with raises(ConfigError, "option-missing", f"{sink.__name__}"):
        sink()


def test_a_sql_sink_on_postgres_is_still_called_so() -> None:
    with raises(ConfigError, "option-unknown", "'mod'", "'mode'"):
        SqlSink("postgresql://h/d", "t", mod="upsert")  # type: ignore[call-arg]
