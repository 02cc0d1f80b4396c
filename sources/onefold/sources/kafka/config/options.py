"""A Kafka source as the options of the Spark data source `onefold_kafka`, and read back from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any

from onefold.clients.kafka.librdkafka import near
from onefold.core.errors import ConfigError
from onefold.core.job.offset_json import format_offsets
from onefold.core.positions import Positions
from onefold.sources.kafka.config.model import KafkaSourceConfig
from onefold.sources.kafka.planning import starting

__all__ = ["constructor_arguments", "spark_options"]

# Spark shows options in its plans, but for those whose names say password, secret, token or URL.
_SECRET = re.compile(r"user\.info$|\.pem$|oauthbearer\.config$")
_HIDDEN = "secret."

_NO_STATE = (
    "a data source has no state: use pipeline.read(spark, KafkaSource(..., deduplicate=...)), or "
    "onefold.spark.deduplicate(df, ...)"
)
_REFUSED = {
    "failondataloss": "records that Kafka has deleted always fail with DataLoss; to accept a loss, start with a new "
    "pipeline name and explicit startingOffsets",
    "assign": "name the topics in subscribe; every partition is read",
    "includeheaders": "format=raw always has headers, the others with columns='headers'",
    "startingoffsetsbytimestampstrategy": "a partition with no record from that time on starts at its end",
    "kafka.group.id": "positions are kept in the checkpoint, no consumer group is joined; to show them in one, give "
    "commitToGroup",
    "deduplicate": _NO_STATE,
}
# Of the data source alone: they say what one query reads, and not what the source is.
_OF_A_QUERY = ("endingOffsets", "frozen", "until", "direct", "startingTimestamp", "startingOffsetsByTimestamp")
_LOWERED = ("format", "columns", "compiled_fetch")  # Spark's users write their values in any case


def _option(of: Field[Any]) -> str | None:
    first, *others = of.name.split("_")
    name: str | None = of.metadata.get("option", first + "".join(map(str.capitalize, others)))
    return name


_FIELDS: dict[str, Field[Any]] = {name: of for of in fields(KafkaSourceConfig) if (name := _option(of)) is not None}
_NAMES = {name.lower(): name for name in (*_FIELDS, *_OF_A_QUERY) if not name.endswith(".")}
_PREFIXES = tuple(name for name in _FIELDS if name.endswith("."))


def spark_options(config: KafkaSourceConfig, positions: Positions | None) -> dict[str, str]:
    """What differs from the defaults. With `positions`, the query starts there, as a pipeline has frozen them.

    Raises ConfigError for a source with `deduplicate` that no pipeline has frozen: the data source cannot do that.
    """
    if config.deduplicate is not None and positions is None:
        raise ConfigError("option-not-allowed", f"deduplicate= cannot be an option: {_NO_STATE}")
    options: dict[str, str] = {}
    for name, of in _FIELDS.items():
        value = getattr(config, of.name)
        if name in _PREFIXES:
            options |= {f"{name}{inner}": text for inner, text in (value or {}).items()}
        elif value != of.default:
            options[name] = _text(of, value)
    if positions is not None:
        options |= {"startingOffsets": format_offsets(positions), "frozen": "true"}
        options.pop("commitToGroup", None)  # the pipeline tells the group itself
    return {f"{_HIDDEN}{name}" if _SECRET.search(name) else name: text for name, text in options.items()}


def constructor_arguments(options: Mapping[str, str]) -> dict[str, Any]:
    """What the source is made with. Names are matched without regard to case.

    Raises ConfigError for options that are none, and for values that make no sense.
    """
    given: dict[str, str] = {}
    arguments: dict[str, Any] = {"bootstrap_servers": ""}
    for key, value in options.items():
        name = key.lower().removeprefix(_HIDDEN)
        if name in _REFUSED:
            raise ConfigError("option-not-allowed", f"the option {key!r} cannot be given: {_REFUSED[name]}")
        if name in _NAMES:
            given[_NAMES[name]] = value
        elif prefix := next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None):
            arguments.setdefault(_FIELDS[prefix].name, {})[name.removeprefix(prefix)] = value
        else:
            hint = near(name, _NAMES) or f"; known are {', '.join(sorted(_NAMES.values()))} and kafka.*"
            for lower, proper in _NAMES.items():
                hint = hint.replace(f"{lower!r}", f"{proper!r}")
            raise ConfigError("option-unknown", f"onefold_kafka has no option {key!r}{hint}")
    if "subscribe" not in given and "subscribePattern" not in given:
        raise ConfigError(
            "option-missing", "the option 'subscribe' is missing: name the topics, comma-separated; or subscribePattern"
        )
    for name, of in _FIELDS.items():
        if name in given:
            arguments[of.name] = _value(name, of, given[name])
    return arguments | {"starting_offsets": starting.of_options(given)}


def _text(of: Field[Any], value: Any) -> str:
    if of.type == "float":
        return str(int(value * 1000))  # times are seconds in Python, and milliseconds as options
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _value(name: str, of: Field[Any], text: str) -> Any:
    text = text.strip().lower() if of.name in _LOWERED else text
    kinds = str(of.type).split(" | ")
    if "int" in kinds or "float" in kinds:
        try:
            return int(text) if "int" in kinds else int(text) / 1000
        except ValueError:
            raise ConfigError("option-value", f"{name} is a whole number, not {text!r}") from None
    if "Sequence[str]" not in kinds:
        return text
    return [part.strip() for part in text.split(",") if part.strip() or name == "subscribe"]
