"""A data source's options read back as the settings of a `KafkaSource`. Names are matched without regard to case."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from onefold.clients.kafka.librdkafka import near
from onefold.core.errors import ConfigError
from onefold.sources.kafka.config import operations
from onefold.sources.kafka.config.options import FORMAT_OPTIONS, format_settings
from onefold.sources.kafka.planning import starting

__all__ = ["NO_STATE", "hidden", "topics_and_settings"]

# Spark shows options in its plans, but for those whose names say password, secret, token or URL.
_SECRET = re.compile(r"user\.info$|\.pem$|oauthbearer\.config$")
_HIDDEN = "secret."

_OPTIONS = {
    "subscribe",
    "subscribePattern",
    "format",
    "positions",
    "startingOffsets",
    "endingOffsets",
    "frozen",
    "until",
    "maxOffsetsPerTrigger",
    "timeoutMs",
    "direct",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    *operations.OPTIONS,
    *FORMAT_OPTIONS,
    "compiledFetch",
}
NO_STATE = (
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
    "deduplicate": NO_STATE,
}


def hidden(name: str) -> str:
    """The option's name, such that Spark's plans leave its value out where that is a secret."""
    return f"{_HIDDEN}{name}" if _SECRET.search(name) else name


def topics_and_settings(options: Mapping[str, str]) -> tuple[list[str], dict[str, Any]]:
    """What the source is made with. Raises ConfigError for options that are none, and for values that make no sense."""
    given, settings, registry = _sorted_out(options)
    if "subscribe" not in given and "subscribePattern" not in given:
        raise ConfigError("the option 'subscribe' is missing: name the topics, comma-separated; or subscribePattern")
    topics = [topic.strip() for topic in given["subscribe"].split(",")] if "subscribe" in given else []
    return topics, {
        "bootstrap_servers": settings.pop("bootstrap.servers", ""),
        "format": given.get("format", "raw").lower(),
        "positions": _flag("positions", given.get("positions", "false")),
        "starting_offsets": starting.of_options(given),
        "max_offsets_per_trigger": _whole("maxOffsetsPerTrigger", given.get("maxOffsetsPerTrigger")),
        "settings": settings,
        "timeout_s": (_whole("timeoutMs", given.get("timeoutMs")) or 60_000) / 1000,
        "topics_pattern": given.get("subscribePattern"),
        **operations.settings(given),
        "schema_registry": registry or None,
        **format_settings(given),
        "compiled_fetch": given.get("compiledFetch", "auto").strip().lower(),
    }


def _sorted_out(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """The source's own options by their proper names; librdkafka's settings; and the schema registry's."""
    known = {name.lower(): name for name in _OPTIONS}
    given: dict[str, str] = {}
    settings: dict[str, str] = {}
    registry: dict[str, str] = {}
    for key, value in options.items():
        name = key.lower().removeprefix(_HIDDEN)
        if name in _REFUSED:
            raise ConfigError(f"the option {key!r} cannot be given: {_REFUSED[name]}")
        if name.startswith("kafka."):
            settings[name.removeprefix("kafka.")] = value
        elif name.startswith("schema.registry."):
            registry[name.removeprefix("schema.registry.")] = value
        elif name in known:
            given[known[name]] = value
        else:
            hint = near(name, known) or f"; known are {', '.join(sorted(_OPTIONS))} and kafka.*"
            for lower, proper in known.items():
                hint = hint.replace(f"{lower!r}", f"{proper!r}")
            raise ConfigError(f"onefold_kafka has no option {key!r}{hint}")
    return given, settings, registry


def _flag(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ConfigError(f"{name} is true or false, not {text!r}")
    return text.strip().lower() == "true"


def _whole(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name} is a whole number, not {text!r}") from None
