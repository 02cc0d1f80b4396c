"""A consumer group that is told where a pipeline stands, for dashboards. Nobody reads it back."""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException

from onefold.core.errors import OnefoldError
from onefold.core.positions import Positions
from onefold.sources.kafka import settings as client
from onefold.sources.kafka.standing import Standing

if TYPE_CHECKING:
    from onefold.sources.kafka.offsets import Broker
    from onefold.sources.kafka.source import KafkaSource

__all__ = ["GroupPositions"]

_CLOSE_S_MAX = 5.0


class GroupPositions:
    """Shows positions in the group that the source names, if it names one. Failures are logged, never raised, and
    nothing waits for the broker. Pickles."""

    def __init__(self, source: KafkaSource) -> None:
        self._source = source
        self._broker: Broker | None = None
        self._sent: Future[Any] | None = None

    def show(self, at: Positions) -> None:
        """To be called once everything below these positions is in the destination."""
        group, offsets = self._source.commit_to_group, Standing.of(at).offsets
        if group is None or not offsets:
            return
        try:
            if self._broker is None:
                self._broker = self._source.broker()
            self._sent = self._broker.set_group(group, offsets)
        except (OnefoldError, KafkaException) as error:
            self._warn(error)
            return
        self._sent.add_done_callback(self._done)

    def close(self) -> None:
        """Give the last positions a moment to arrive."""
        if self._sent is not None:
            with suppress(NoAnswer, KafkaException):
                self._sent.result(_CLOSE_S_MAX)
        self._broker = self._sent = None

    def _done(self, sent: Future[Any]) -> None:
        error = sent.exception()
        if error is not None:
            self._warn(error)
            return
        for answer in sent.result().topic_partitions:
            if answer.error is not None:
                self._warn(answer.error)
                return

    def _warn(self, error: object) -> None:
        client.LOGGER.warning(
            "the consumer group %r was not told the positions (%s): dashboards show older ones until the next epoch. It"
            " must have no members of its own, and we need READ on it",
            self._source.commit_to_group,
            error,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_broker": None, "_sent": None}
