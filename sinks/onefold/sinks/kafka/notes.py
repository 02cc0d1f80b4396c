"""The ledger of mode="keyed": what was announced, what was written, what is complete, in the progress topic.

It needs no transactions. Each generation of a pipeline writes under a key of its own, every record says all that its
writer knew, and what stands is the furthest of all keys' last records, by epoch, then generation: so whatever lands
late or out of turn changes nothing that is beyond it, and compaction keeps what counts. Behind a record of a newer
generation those of older ones count for nothing. A writer reads before it writes, and again after: whoever finds that
somebody went further is fenced.
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from onefold.core.errors import ConfigError, InDoubt
from onefold.core.failpoints import failpoint
from onefold.sinks.kafka import clients, errors, requests
from onefold.sinks.kafka.cluster import cluster
from onefold.sinks.kafka.plan import Settings
from onefold.sinks.kafka.progress import Record
from onefold.sinks.kafka.sending import connect
from onefold.sinks.notes import State

__all__ = ["TopicNotes"]


class TopicNotes:
    """Of one sink of one pipeline. Every call may be repeated, by any process."""

    def __init__(self, settings: Settings, pipeline: str) -> None:
        self._settings, self._pipeline = settings, pipeline
        self._names = settings.names(pipeline)
        self._kafka = cluster(*settings.cluster)
        self._others: dict[str, State] = {}  # of sinks of that name in other pipelines
        self._state = State()
        self._generations: set[int] = set()  # whose keys are there
        self._wrote: int | None = None  # as which generation this process did last
        self._offset = 0
        self._producer: Producer | None = None

    def read(self) -> State:
        """All that the progress topic says by now."""
        for items, offset in requests.read_log(self._kafka, self._settings.progress_topic, self._offset):
            for item in items:
                if isinstance(item, Record):
                    self._take(item)
            self._offset = offset
        return self._state

    def others(self) -> Mapping[str, State]:
        self.read()
        return dict(self._others)

    def write(self, state: State, generation: int) -> State:
        """Note it, and return what stands then: this, unless somebody went further.

        Raises InDoubt where it is not known whether it was noted: then the next note goes through the same producer,
        so that the first cannot land behind it.
        """
        if self._state.generation > generation:
            return self._state
        whole = self._state.joined(state).to_json()
        failures: list[KafkaError] = []

        def failed(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)

        try:
            producer = self._open()

            def put(value: bytes | None, of: int) -> None:
                topic = self._settings.progress_topic
                producer.produce(topic, value, f"{self._names.notes}{of}", partition=0, on_delivery=failed)

            put(whole, generation)
            failpoint("kafka:noted")
            left = producer.flush(self._settings.timeout_s)
            for older in sorted(self._generations):
                # From the first note of a generation on the older ones' count for nothing; and what they said before
                # that was read after it, and is in what was just noted.
                if older < generation == self._wrote and not left and not failures:
                    put(None, older)
        except KafkaException as error:
            raise InDoubt(f"{self._doing(generation)}: {error}") from error
        if failures:
            if isinstance(refusal := errors.translate(failures[0], self._doing(generation)), ConfigError):
                raise refusal
            if any(failure.fatal() for failure in failures):
                self._producer = None
        if left or failures:
            why = failures[0].str() if failures else f"{self._settings.timeout_s:g} s have passed"
            raise InDoubt(f"{self._doing(generation)}: {why}")
        self._wrote = generation
        return self.read()

    def close(self) -> None:
        if self._producer is not None:
            self._producer.flush(self._settings.timeout_s)
        self._producer = None

    def _take(self, record: Record) -> None:
        if record.key == self._names.ledger:
            raise ConfigError(
                f"{self._settings.where(self._pipeline)} has written with mode='transactional' before, and what its"
                " ledger says is of transactions: give the sink another name= for mode='keyed'"
            )
        generation = record.key.removeprefix(self._names.notes)
        if record.key.startswith(self._names.notes) and generation.isdigit():
            if record.value is None:
                self._generations.discard(int(generation))
            else:
                self._generations.add(int(generation))
                self._state = self._state.after(State.from_json(record.value), int(generation))
        elif record.value is not None and (other := self._names.pipeline_of(record.key)) is not None:
            self._others[other] = self._others.get(other, State()).joined(State.from_json(record.value))

    def _open(self) -> Producer:
        if self._producer is None:
            settings = self._settings
            own = {"linger.ms": "0", "message.timeout.ms": str(int(settings.timeout_s * 1000))}
            config = clients.producer_config(settings.bootstrap_servers, settings.librdkafka, own)
            try:
                self._producer = Producer({**config, "logger": clients.LOGGER})
            except KafkaException as error:
                raise clients.refused_by_client(error) from error
            connect(self._producer, settings, f"{settings.where(self._pipeline)}, connecting")
        return self._producer

    def _doing(self, generation: int) -> str:
        where = self._settings.where(self._pipeline)
        return f"{where}, noting as generation {generation} in the topic {self._settings.progress_topic!r}"
