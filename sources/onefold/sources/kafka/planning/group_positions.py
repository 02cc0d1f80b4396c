"""Commits a pipeline's positions to a consumer group, for dashboards. Nothing reads them back."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from typing import Any

from confluent_kafka import KafkaException

from onefold.clients.kafka.client_roles import CONSUMER
from onefold.core.errors import OnefoldError
from onefold.core.positions import Positions
from onefold.core.waiting import Wait
from onefold.sources.kafka.offsets import OffsetSnapshot, Partition
from onefold.sources.kafka.planning.broker import Broker
from onefold.sources.kafka.source_options import KafkaSourceConfig

_CLOSE_S_MAX = 5.0


class GroupPositions:
    """Commits positions to the source's `commit_to_group`. Failures are logged and not raised, and no epoch waits for
    the broker. Pickles."""

    def __init__(self, source: KafkaSourceConfig) -> None:
        self._source = source
        self._broker: Broker | None = None
        self._last: Mapping[Partition, int] = {}
        self._sent: Future[Any] | None = None

    def show(self, at: Positions) -> None:
        """To be called once everything below these positions is in the destination."""
        covers = self._source.subscription.covers
        self._last = {p: offset for p, offset in OffsetSnapshot.of(at).offsets.items() if covers(p[0])}
        if self._source.commit_to_group is None or not self._last:
            return
        try:
            self._sent = self._send()
        except (OnefoldError, KafkaException) as error:
            self._warn(error)
        else:
            self._sent.add_done_callback(self._look)

    def close(self) -> None:
        """Give the last positions a moment to arrive; a group's coordinator that moves is asked again."""
        wait = Wait(_CLOSE_S_MAX)
        while self._sent is not None:
            try:
                failed = _failure(self._sent, max(0.1, wait.left_s))
                if failed is None or not wait.again():
                    break
                self._sent = self._send()
            except (OnefoldError, KafkaException) as error:
                self._warn(error)
                break
        self._broker = self._sent = None

    def _send(self) -> Future[Any]:
        assert self._source.commit_to_group is not None
        if self._broker is None:
            self._broker = self._source.broker()
        return self._broker.set_group(self._source.commit_to_group, self._last)

    def _look(self, sent: Future[Any]) -> None:
        failed = _failure(sent, 0)
        if failed is not None:
            self._warn(failed)

    def _warn(self, error: object) -> None:
        CONSUMER.logger.warning(
            "the consumer group %r was not told the positions (%s): dashboards show older ones until the next epoch. It"
            " must have no members of its own, and we need READ on it",
            self._source.commit_to_group,
            error,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_broker": None, "_sent": None}


def _failure(sent: Future[Any], timeout_s: float) -> object | None:
    """Why the positions did not arrive, or have not yet; None if they did."""
    try:
        answers = sent.result(timeout_s).topic_partitions
    except (NoAnswer, KafkaException) as error:
        return error
    return next((answer.error for answer in answers if answer.error is not None), None)
