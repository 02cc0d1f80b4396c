"""The command line's options of a Kafka sink, for `verify` and `doctor`, and the sink that they describe."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onefold.cli.option_values import comma_separated, settings_of
from onefold.core import ConfigError

if TYPE_CHECKING:
    from onefold.sinks import KafkaSink

__all__ = ["Delivery", "Id", "Into", "Ledger", "Name", "Prefix", "Servers", "Setting", "kafka_sink"]


class _Delivery(StrEnum):
    TRANSACTIONAL = "transactional"
    KEYED = "keyed"


Into = Annotated[str | None, typer.Option(help="A Kafka sink's topic.")]
Servers = Annotated[str | None, typer.Option(help="Its brokers, if they aren't the source's.")]
Delivery = Annotated[_Delivery | None, typer.Option(help="The Kafka sink's delivery, if it isn't transactional.")]
Name = Annotated[str | None, typer.Option(help="The Kafka sink's name, if it isn't the topic's.")]
Id = Annotated[str, typer.Option(help="keyed: the columns that make the unique id.")]
Ledger = Annotated[str | None, typer.Option(help="The Kafka sink's ledger, if it was named.")]
Prefix = Annotated[str | None, typer.Option(help="As the Kafka sink has it.")]
Setting = Annotated[
    list[str] | None, typer.Option(help="name=value, ${VARIABLE} or @file: librdkafka's, of source and sink.")
]

_COLUMNS = ("id", "into_key", "into_headers")


def kafka_sink(into: str | None, servers: str | None, settings: Sequence[str] = (), **given: Any) -> KafkaSink | None:
    """The sink; None where no topic was given. What was left out is as KafkaSink has it. Raises ConfigError.

    `given` has the options' names; those that KafkaSink does not call so begin with `into_`, as its topic does.
    """
    options = {name: value for name, value in given.items() if value not in (None, "")}
    if into is None:
        if options:
            option = next(iter(options)).replace("_", "-")
            raise ConfigError("option-missing", f"--{option} goes with --into, the Kafka sink's topic")
        return None
    if servers is None:
        raise ConfigError("option-missing", "--into goes with --into-servers, the brokers of the sink's topic")
    from onefold.sinks import KafkaSink

    for name, value in options.items():
        options[name] = (
            comma_separated(value) if name in _COLUMNS else value.value if isinstance(value, StrEnum) else value
        )
    own = {name.removeprefix("into_"): value for name, value in options.items()}
    return KafkaSink(into, bootstrap_servers=servers, client_config=settings_of(settings), **own)
