"""Where a first batch starts: what a user writes is parsed, and resolved to offsets by what the broker answers."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from onefold.core.errors import ConfigError, DataLoss
from onefold.core.positions import FROM, LEADER_EPOCHS, TOPIC_ID
from onefold.core.values.names import near
from onefold.core.values.remedies import RESET
from onefold.sources.kafka.offsets import Offsets, OffsetSnapshot, Partition, names_of
from onefold.sources.kafka.planning.broker import Broker, Topic
from onefold.sources.kafka.planning.subscription import Subscription

LATEST, EARLIEST = -1, -2  # as in Spark's startingOffsets, and in Kafka's own ListOffsets
KEYWORDS = ("earliest", "latest", "ledger")

Place = int | datetime  # an offset, EARLIEST or LATEST; or the first record from that time on
StartingOffsets = str | datetime | Mapping[str, str | datetime | Mapping[str, int | str | datetime]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WORDS: dict[str, Place] = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True)
class Start:
    """A place for every partition, or for those of a topic, or for one; the narrower one counts."""

    every: Place | None = None
    topics: Mapping[str, Place] = field(default_factory=dict)
    partitions: Mapping[Partition, Place] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)

    def place(self, partition: Partition) -> Place | None:
        return self.partitions.get(partition, self.topics.get(partition[0], self.every))


def text_of(starting: StartingOffsets) -> str:
    """As it goes through options, and pickles: a word, a time, or JSON."""
    if isinstance(starting, str):
        return starting
    return starting.isoformat() if isinstance(starting, datetime) else json.dumps(starting, default=_iso)


def of_options(given: Mapping[str, str]) -> str:
    """What a data source's options, by their names in lower case, say of it; Spark's two for times are among them."""
    names = [
        name for name in ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp") if name.lower() in given
    ]
    if len(names) > 1:
        raise ConfigError("options-conflict", f"give {names[0]} or {names[1]}, not both")
    text = given[names[0].lower()] if names else "earliest"
    match names:
        case ["startingTimestamp"]:
            return _time_of(names[0], text)
        case ["startingOffsetsByTimestamp"]:
            try:
                value = {t: {p: _time_of(names[0], ms) for p, ms in by.items()} for t, by in json.loads(text).items()}
            except (ValueError, AttributeError):
                raise ConfigError(
                    "option-value",
                    f'{names[0]} is JSON such as {{"orders": {{"0": 1763692380000}}}}, in milliseconds, not {text!r}',
                ) from None
            return json.dumps(value)
    return text.strip().lower() if text.strip().lower() in KEYWORDS else text


def _time_of(name: str, ms: str | int) -> str:
    try:
        return (_EPOCH + timedelta(milliseconds=int(ms))).isoformat(timespec="milliseconds")
    except (ValueError, TypeError, OverflowError):
        raise ConfigError("option-value", f"{name}: {ms!r} is no time in milliseconds since 1970") from None


def parse(name: str, text: str, subscription: Subscription) -> Start:
    """What the option `name` says; raises `ConfigError` with what is wrong."""
    example = subscription.topics[0] if subscription.topics else "orders"
    form = (
        f'{name} is earliest, latest, a time such as 2026-11-20T00:00:00Z, or JSON such as {{"{example}": {{"0": 17}}}}'
    )
    if (place := _word_or_time(name, text)) is not None:
        return Start(every=place)
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError("option-value", f"{form}, not {text!r} ({error}){near(text, KEYWORDS)}") from None
    if not isinstance(value, dict) or not all(isinstance(by, dict | str) for by in value.values()):
        raise ConfigError("option-value", f"{form}, not {text!r}")
    topics: dict[str, Place] = {}
    partitions: dict[Partition, Place] = {}
    ids: dict[str, str] = {}
    for topic, by in value.items():
        if topic in subscription.forgotten:
            continue  # a pipeline's positions keep it
        if not subscription.covers(topic):
            raise ConfigError(
                "topic-not-subscribed",
                f"{name} names the topic {topic!r}, which is not subscribed to{near(topic, subscription.topics)}",
            )
        if isinstance(by, str):
            topics[topic] = _place(f"{name}: {topic}", by)
            continue
        for partition, offset in by.items():
            if partition == TOPIC_ID:
                ids[topic] = str(offset)
            elif partition not in (LEADER_EPOCHS, FROM):
                if not partition.isdigit():
                    raise ConfigError(
                        "option-value", f'{name}: {topic}/{partition}: a partition is a number such as "0"'
                    )
                partitions[topic, int(partition)] = _place(f"{name}: {topic}/{partition}", offset)
    return Start(None, topics, partitions, ids)


def initial(
    broker: Broker, subscription: Subscription, starting_offsets: str, without: Collection[str] = ()
) -> OffsetSnapshot:
    """Where a first batch starts, as the broker says now, but for the topics `without` which it is asked. Without a
    ledger, "ledger" is "earliest"."""
    spec = "earliest" if starting_offsets == "ledger" else starting_offsets
    start = parse("starting_offsets", spec, subscription)
    topics = {topic: found for topic, found in subscription.find(broker).items() if topic not in without}
    partitions = {partition: place for partition, place in start.partitions.items() if partition[0] not in without}
    ids = {topic: name for topic, name in start.ids.items() if topic not in without}
    return resolve(broker, topics, replace(start, partitions=partitions, ids=ids))


def resolve(broker: Broker, topics: Mapping[str, Topic], start: Start) -> OffsetSnapshot:
    """An offset for every partition. Raises `ConfigError` where one is left out, does not exist, or ends before its
    offset, and `DataLoss` where the record at an offset was deleted, or the topic made anew."""
    there = [(topic, number) for topic, found in topics.items() for number in found.partitions]
    if unknown := sorted(start.partitions.keys() - set(there)):
        raise ConfigError(
            "partition-unknown", f"starting_offsets names {names_of(unknown)}, which Kafka does not have: take it out"
        )
    places = {partition: start.place(partition) for partition in there}
    if missing := [partition for partition, place in places.items() if place is None]:
        raise ConfigError(
            "partition-left-out",
            f"starting_offsets leaves out {names_of(missing)}: give an offset for every partition, -2 for the earliest"
            " or -1 for the latest",
        )
    check_ids(start.ids, topics)
    # The ends first: a record that arrives while we ask is then after "latest", and not between a time and the end.
    ends = broker.ends(there)
    given: Offsets = {partition: place for partition, place in places.items() if isinstance(place, int)}
    if explicit := {partition: offset for partition, offset in given.items() if offset >= 0}:
        _check_within(explicit, broker.earliest(explicit), broker.log_end(explicit))
    early = [partition for partition, place in places.items() if place == EARLIEST]
    found = offsets_at(broker, places, broker.earliest(early) if early else {}, ends.offsets)
    ids = {topic: described.id for topic, described in topics.items() if described.id is not None}
    return OffsetSnapshot(found, ids, ends.epochs)


def offsets_at(
    broker: Broker,
    places: Mapping[Partition, Place | None],
    first: Mapping[Partition, int],
    end: Mapping[Partition, int],
) -> Offsets:
    """The offset of each place; of these, EARLIEST is `first`, and LATEST is `end`, as is a time after all records."""
    found = {p: place for p, place in places.items() if isinstance(place, int)} | _at_times(broker, places)
    found |= {partition: first[partition] for partition, offset in found.items() if offset == EARLIEST}
    return found | {partition: end[partition] for partition, offset in found.items() if offset == LATEST}


def resolve_end(broker: Broker, latest: OffsetSnapshot, end: Start) -> Offsets:
    """Where a bounded read ends: an offset for each partition of `latest`, none beyond it."""
    places = {partition: end.place(partition) for partition in latest.offsets}
    if missing := [partition for partition, place in places.items() if place is None]:
        raise ConfigError(
            "partition-left-out",
            f"endingOffsets leaves out {names_of(missing)}: give every partition, -1 for the latest",
        )
    if unknown := sorted(end.partitions.keys() - latest.offsets.keys()):
        raise ConfigError(
            "partition-unknown", f"endingOffsets names {names_of(unknown)}, which Kafka does not have: take it out"
        )
    _refuse_others(end.ids, latest.ids)
    found = {p: place for p, place in places.items() if isinstance(place, int)} | _at_times(broker, places)
    for (topic, number), offset in found.items():
        last = latest.offsets[topic, number]
        if offset > last or offset == EARLIEST:
            raise ConfigError(
                "ending-offset-beyond-end",
                f"endingOffsets: {topic}/{number} ends at {last} (-1), so {offset} cannot be read",
            )
    return {partition: latest.offsets[partition] if offset == LATEST else offset for partition, offset in found.items()}


def check_ids(known: Mapping[str, str], topics: Mapping[str, Topic]) -> None:
    """Raise `DataLoss` if a topic is another one than that of which there are positions."""
    _refuse_others(known, {name: topic.id for name, topic in topics.items() if topic.id is not None})


def _refuse_others(known: Mapping[str, str], now: Mapping[str, str]) -> None:
    for topic, name in known.items():
        if now.get(topic, name) != name:
            raise DataLoss(
                "topic-recreated",
                f"{topic}: the topic was deleted and made anew: its id is {now[topic]} now, and the positions are of"
                f" the topic {name}. Nothing of the new one was read, and what was not read of the old one is lost."
                f" Accept that openly: {RESET}; in plain Spark, a new checkpoint",
            )


def _at_times(broker: Broker, places: Mapping[Partition, Place | None]) -> Offsets:
    """The first record from a time on; LATEST where there is none yet. A time before 1970 is 1970: of Kafka's negative
    ones -1 is the end."""
    times = {partition: max(place, _EPOCH) for partition, place in places.items() if isinstance(place, datetime)}
    found = broker.at_times({partition: (at - _EPOCH) // timedelta(milliseconds=1) for partition, at in times.items()})
    return {partition: offset if offset >= 0 else LATEST for partition, offset in found.items()}


def _check_within(given: Offsets, first: Offsets, end: Offsets) -> None:
    for (topic, number), offset in given.items():
        at = (topic, number)
        if offset > end[at]:
            raise ConfigError(
                "starting-offset-beyond-end",
                f"starting_offsets: {topic}/{number} is to start at {offset}, and ends at {end[at]}: correct the offset"
                " (-1 for the end); or is this another topic of the same name?",
            )
        if offset < first[at]:
            raise DataLoss(
                "records-deleted",
                f"starting_offsets: {topic}/{number} is to start at {offset}, but Kafka has deleted everything before"
                f" {first[at]} (retention, or delete_records). Start at {first[at]}, or at -2, to accept the loss",
            )


def _place(where: str, value: object) -> Place:
    if isinstance(value, str) and (place := _word_or_time(where, value)) is not None:
        return place
    if isinstance(value, bool) or not isinstance(value, int) or value < EARLIEST:
        raise ConfigError(
            "option-value",
            f"{where}: an offset is a whole number from 0, or -1 for the latest, or -2 for the earliest; or it is"
            f" earliest, latest, or a time such as 2026-11-20T00:00:00Z; not {value!r}",
        )
    return value


def _word_or_time(where: str, text: str) -> Place | None:
    if text in _WORDS:
        return _WORDS[text]
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    if at.tzinfo is None:
        raise ConfigError(
            "option-value", f"{where}: the time {text!r} has no zone: write {at.isoformat()}Z for UTC, or +01:00"
        )
    return at


def _iso(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"starting_offsets: {value!r} is no offset and no time")
