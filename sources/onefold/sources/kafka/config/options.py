"""A Kafka source as the options of the Spark data source `onefold_kafka`, and read back from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from onefold.clients.option_texts import from_texts, to_texts
from onefold.core.errors import ConfigError
from onefold.sources.kafka.config.model import KafkaSourceConfig
from onefold.sources.kafka.planning import start_positions

__all__ = ["constructor_arguments", "spark_options"]

# Spark shows options in its plans, but for those whose names say password, secret, token or URL.
_SECRET = re.compile(r"user\.info$|\.pem$|oauthbearer\.config$")
_HIDDEN = "secret."

_REFUSED = {
    "failondataloss": "records that Kafka has deleted always fail with DataLoss; to accept a loss, start with a new "
    "pipeline name and explicit startingOffsets",
    "assign": "name the topics in subscribe; every partition is read",
    "includeheaders": "format=raw always has headers, the others with columns='headers'",
    "startingoffsetsbytimestampstrategy": "a partition with no record from that time on starts at its end",
    "kafka.group.id": "positions are kept in the checkpoint, no consumer group is joined; to show them in one, give "
    "commitToGroup",
}
# Of the data source alone: they say what one query reads, and not what the source is.
_OF_A_QUERY = ("endingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")


def spark_options(config: KafkaSourceConfig) -> dict[str, str]:
    """What differs from the defaults."""
    return {f"{_HIDDEN}{name}" if _SECRET.search(name) else name: text for name, text in to_texts(config).items()}


def constructor_arguments(options: Mapping[str, str]) -> dict[str, Any]:
    """What the source is made with. Names are matched without regard to case.

    Raises ConfigError for options that are none, and for values that make no sense.
    """
    texts = {re.sub(f"^{_HIDDEN}", "", name, flags=re.IGNORECASE): text for name, text in options.items()}
    found = from_texts("onefold_kafka", texts, KafkaSourceConfig, refused=_REFUSED, beside=_OF_A_QUERY)
    if "topics" not in found and "topics_pattern" not in found:
        raise ConfigError(
            "option-missing", "the option 'subscribe' is missing: name the topics, comma-separated; or subscribePattern"
        )
    starting_offsets = start_positions.of_options({name.lower(): text for name, text in texts.items()})
    return {"bootstrap_servers": "", **found, "starting_offsets": starting_offsets}
