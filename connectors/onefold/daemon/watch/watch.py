"""One pipeline as the daemon sees it: what its checkpoint store, its source and its sinks say."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

from onefold.core import DataLoss, Guarantee, OnefoldError
from onefold.core.findings import Held, Holding
from onefold.daemon.control import Control
from onefold.daemon.pipeline_run import RunState
from onefold.daemon.watch.poller import Poller
from onefold.operate.lags import Lag, Lags, in_all
from onefold.pipeline.file import definition
from onefold.store.history import History, PipelineStatus, StoredEpoch

_STORE_S = 2.0
_SINKS_S = 10.0
_SOURCE_S = 5.0  # between two questions, and for the answer of each
_GUARANTEES_S = 60.0
_WITHIN_S = 5.0  # of one statement in the store
_PAGE = 500
_END_S = 1.0  # for what it asks at its end
_LAGS_KEPT = 720  # an hour
_TRIES = 3
_READY = (RunState.RUNNING, RunState.PAUSED, RunState.FINISHED)


class Watch:
    """The looks at one pipeline. `observe` gets each epoch that this process completes, once, some seconds later."""

    def __init__(self, control: Control, observe: Callable[[StoredEpoch], None]) -> None:
        self.control = control
        self.history = History(control.pipeline.store_url, _WITHIN_S)
        name = control.name
        self._ask_lags = Lags(control.pipeline, lambda source: self.history.journal(name, source), _SOURCE_S)
        self.status = Poller(f"where pipeline {name!r} stands", self._stands, _STORE_S)
        self.lag = Poller(f"the lag of pipeline {name!r}", self._lags, _SOURCE_S)
        self.prepared = Poller(f"what pipeline {name!r} has prepared", self._prepared, _SINKS_S)
        self.guarantees = Poller(f"what pipeline {name!r} guarantees", self._guarantees, _GUARANTEES_S)
        self.definition = definition(control.pipeline.named)  # as its file was when the daemon was started
        self.lags: deque[tuple[float, dict[str, int]]] = deque(maxlen=_LAGS_KEPT)  # in all, and when that was
        self._observe = observe
        self._first_generation: int | None = None  # of this process
        self._seen = 0  # the last epoch that was observed

    @property
    def _looks(self) -> tuple[Poller[PipelineStatus | None] | Poller[Mapping[str, Guarantee]], ...]:
        return self.status, self.lag, self.prepared, self.guarantees  # type: ignore[return-value]  # of different types, read alike

    def start(self) -> None:
        for look in self._looks:
            look.start()

    def stop(self) -> None:
        for look in self._looks:
            look.stop()
        until_s = time.monotonic() + _END_S
        for look in self._looks:
            look.join(until_s - time.monotonic())
        self._ask_lags.close()
        self.history.close()

    @property
    def held(self) -> Mapping[str, list[Held]] | None:
        """What its sinks hold prepared. Once its run has ended it is not known before they have been asked again."""
        return self.prepared.since(self.control.run.ended_s)

    @property
    def waits_for(self) -> OnefoldError | None:
        """The error of a server that is away or busy: one that its run waits for, or its source's."""
        run = self.control.run
        if run.state.is_over:
            return None
        return run.waiting_for or self.lag.error

    @property
    def is_ready(self) -> bool:
        """Whether it runs, is paused or has finished, and waits for no server."""
        return self.control.state in _READY and self.waits_for is None

    def _stands(self) -> PipelineStatus | None:
        self._observe_completed()
        return self.history.status(self.control.name)

    def _observe_completed(self) -> None:
        generation = self.control.run.generation
        if generation is None:
            return
        if self._first_generation is None:
            self._first_generation = generation
        for epoch in self.history.completed(self.control.name, self._seen, self._first_generation, _PAGE):
            if epoch.record.generation > generation:
                return  # by a process that has taken over since
            self._observe(epoch)
            self._seen = epoch.record.epoch

    def _lags(self) -> tuple[Lag, ...] | None:
        """None where it is not known where the pipeline stands, or it goes on faster than a source can be asked: the
        driver forgets what it has left behind."""
        for _ in range(_TRIES):
            status = self.history.status(self.control.name)
            if status is None or status.positions is None:
                return None
            with suppress(DataLoss):  # if it is one, the pipeline says so
                found = self._ask_lags(status.positions.of_records())
                self.lags.append((time.time(), in_all(found)))
                return found
        return None

    def _prepared(self) -> Mapping[str, list[Held]]:
        sinks = [sink for sink in self.control.pipeline.everyone if isinstance(sink, Holding)]
        return {sink.name: list(sink.held(self.control.name)) for sink in sinks}

    def _guarantees(self) -> Mapping[str, Guarantee]:
        return {sink.name: sink.guarantee() for sink in self.control.pipeline.everyone}
