"""One subtask of a hop: bundle after bundle, each of them one transaction of its worker's database."""

from __future__ import annotations

import logging
import pickle
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from onefold.core.contract import TaskId
from onefold.core.failpoints import failpoint
from onefold.core.source import Part, Source
from onefold.core.values.batches import repeated
from onefold.core.writing.arrangement import EPOCH_COLUMN
from onefold.engine.dataflow.chain_operators import Emitted, Operators
from onefold.engine.dataflow.chains import Chain
from onefold.engine.dataflow.items import size_bytes
from onefold.engine.dataflow.outbound import Outbound
from onefold.engine.mechanisms.transaction.channels import HopChannel
from onefold.engine.mechanisms.transaction.database import HopDatabase
from onefold.engine.own_process import OwnProcess
from onefold.engine.workers.frames import decoded_item, encoded_item

log = logging.getLogger("onefold")

BUNDLE_BYTES_MAX = 4 << 20  # of what a bundle takes; it may pass that by one batch of each channel
WAITING_MAX = 256  # batches of a channel, before its sender waits


class HopInput:
    """A channel of another hop, into input `port` of the head. What has a number up to `taken[0]` is never read again;
    the rest of `taken` is of splits."""

    def __init__(self, store: HopDatabase, channel: HopChannel, port: int = 0, schema: pa.Schema | None = None) -> None:
        self._store, self._channel, self._schema = store, channel, schema
        self.port, self.name = port, f"taken {channel.name}"
        self.taken = tuple(store.get(self.name, (0, 0, 0)))

    def take(self, bytes_max: int) -> Iterator[Any]:
        for number, frame in self._store.sent_after(self._channel, self.taken[0], bytes_max):
            self.taken = (number, 0, 0)
            yield decoded_item(frame, self._schema)


class SplitsInput(HopInput):
    """Records of the splits that the driver has sent, maybe in several bundles each: `taken` also says how many rows
    and bad records of the next split. `guarded`: the first split, as `Source.read` has it."""

    def __init__(self, store: HopDatabase, channel: HopChannel, source: Source, guarded: bool = False) -> None:
        super().__init__(store, channel)
        self._source, self._guarded = source, guarded
        self._parts: Iterator[Part] | None = None

    def take(self, bytes_max: int) -> Iterator[Any]:
        while bytes_max > 0:
            number, rows, bad = self.taken
            if self._parts is None:
                sent = self._store.sent_after(self._channel, number, 1)
                if not sent:
                    return
                split = pickle.loads(sent[0][1][1])
                self._parts = _without(self._source.read(split, guarded=self._guarded), rows, bad)
            part = next(self._parts, None)
            if part is None:
                self._parts, self._guarded, self.taken = None, False, (number + 1, 0, 0)
                continue
            self.taken = (number, rows + part.rows.num_rows, bad + part.bad.num_rows)
            bytes_max -= size_bytes(part)
            yield part


class Hop:
    """`outputs` by exchange and receiving subtask, of the chain and maybe of others. Rows of `numbered` exchanges get
    the bundle's number as `onefold_epoch`, for a sink whose order names that: it grows with each row of a group. `save`
    gives the handle of the state behind a bundle, within its transaction."""

    def __init__(
        self,
        pipeline: str,
        operators: Operators,
        outbound: Outbound,
        store: HopDatabase,
        chain: Chain,
        inputs: Sequence[HopInput],
        outputs: Mapping[tuple[int, int], HopChannel],
        numbered: Collection[int] = (),
        save: Callable[[int], str] = lambda _number: "",
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._pipeline, self._operators, self._outbound, self._store = pipeline, operators, outbound, store
        self._sent_over = [each for (number, _), each in outputs.items() if number in {e.number for e in chain.outputs}]
        self._name, self._inputs, self._outputs, self._numbered = f"bundle {chain.number}", inputs, outputs, numbered
        self._save, self._now_ms, self._own = save, now_ms, OwnProcess()
        self._number, self._time_ms, _ = store.get(self._name, (0, 0, ""))

    def step(self) -> bool:
        """One bundle, where something waits or a timer is due, and the receivers come along; whether there was one.
        After an error the hop is not used on."""
        if any(self._store.waiting(channel) >= WAITING_MAX for channel in self._sent_over):
            return False
        before = [each.taken for each in self._inputs]
        share_bytes = BUNDLE_BYTES_MAX // len(self._inputs)
        items = [(each.port, item) for each in self._inputs for item in each.take(share_bytes)]
        moved = [each for each, was in zip(self._inputs, before, strict=True) if each.taken != was]
        now_ms = max(self._now_ms(), self._time_ms)  # read once, and kept: it never goes back
        timer_ms = self._operators.timer_ms()
        if not moved and (timer_ms is None or timer_ms > now_ms):
            return False
        self._number, self._time_ms = self._number + 1, now_ms
        with self._store.writing():
            self._process(items)
            for each in moved:
                self._store.put(each.name, each.taken)
            self._store.put(self._name, (self._number, now_ms, self._save(self._number)))
            self._own.check()
            failpoint("hop:written")
        failpoint("hop:committed")
        return True

    def _process(self, items: Iterable[tuple[int, Any]]) -> None:
        task = TaskId(self._pipeline, 1, self._number, self._time_ms, uuid.uuid4())
        self._operators.begin(task)
        for port, item in items:
            self._send(self._operators.take(item, port))
        self._send(self._operators.flush(task))
        if bad := self._operators.bad_of_epoch():
            log.warning("bundle %d: unreadable records: %d", self._number, bad)
        failpoint("hop:processed")

    def _send(self, emitted: Iterable[Emitted]) -> None:
        for each in emitted:
            for send in self._outbound.batch(*each):
                batch = send.item
                if isinstance(batch, pa.RecordBatch) and batch.num_rows:
                    if send.exchange in self._numbered:
                        batch = batch.append_column(EPOCH_COLUMN, repeated(self._number, batch.num_rows))
                    self._store.send(self._outputs[send.exchange, send.to], encoded_item(batch))


def _without(parts: Iterator[Part], rows: int, bad: int) -> Iterator[Part]:
    """The parts of a split without its first rows and bad records."""
    for part in parts:
        left = Part(part.rows.slice(min(rows, part.rows.num_rows)), part.bad.slice(min(bad, part.bad.num_rows)))
        rows, bad = max(0, rows - part.rows.num_rows), max(0, bad - part.bad.num_rows)
        if left.rows.num_rows or left.bad.num_rows:
            yield left
