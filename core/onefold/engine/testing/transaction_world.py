"""The hops of a small flow, struck at every step: two workers, two hops and a sink.

Databases, hops, what the driver plans and the source of the last hop are the production code, on files that a power cut
takes back to what was synced; the source and the epochs of the sink are models. A worker that is taken for dead may go
on once its successor has worked.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from onefold.core.checks import require
from onefold.core.errors import Retriable
from onefold.core.positions import Positions, Range
from onefold.engine.dataflow.chains import plan
from onefold.engine.mechanisms.transaction import database, hops, worker
from onefold.engine.mechanisms.transaction.database import HopDatabase
from onefold.engine.mechanisms.transaction.hop import Hop
from onefold.engine.mechanisms.transaction.hops import Hops
from onefold.engine.mechanisms.transaction.last_hop import HopSetup, OutboxSource, last_hop
from onefold.engine.testing.flow_jobs import DEFAULT_JOB, JOBS, ROWS
from onefold.engine.testing.flow_world import DRIVER_DIES, WORKERS_RUN_ON, ModelSource, Pick, WorldOutcome
from onefold.flow.graph.nodes import Edge, Graph, Node
from onefold.flow.graph.operators import Reading, Writing

FLOW, WORKERS, MAX_PARALLELISM, LIVES_MAX = "model", 2, 4, 12
TRANSACTION = "transaction"  # in the place of a job's name
WORKER_DIES, IS_LATE = "a worker's process dies", "a worker is taken for dead, and goes on later"
POWER_FAILS = "the power fails"
OF_HOPS = (WORKER_DIES, IS_LATE, POWER_FAILS)


class WorkerDied(BaseException):
    pass


class AllDied(BaseException):
    pass


class _Source(ModelSource):
    unit = "record"

    def covers(self, name: str) -> bool:
        return name.startswith("t/")

    def planner(self, *_: Any) -> _Source:
        return self

    def initial(self) -> Positions:
        return self.job.begin

    def is_done(self, at: Positions) -> bool:
        return self.job.next_range(at) is None

    def completed(self, end: Positions) -> None:
        del end

    def close(self) -> None:
        return


class TransactionWorld:
    """`pick` as `FlowWorld` has it. `replaced` makes a mutant: of an owner, an attribute, and by what."""

    def __init__(self, pick: Pick, replaced: Sequence[tuple[Any, str, Any]] = ()) -> None:
        self._pick, self._replaced = pick, replaced
        self.options: list[tuple[str, ...]] = []
        self.taken: dict[int, int] = {}
        memory = Path("/dev/shm")
        self._root = Path(tempfile.mkdtemp(prefix="onefold-world-", dir=memory if memory.is_dir() else None))
        self._synced: dict[Path, bytes] = {}
        self.stores: list[HopDatabase] = []
        self._workers: dict[int, list[Hop]] = {}
        self._now_ms, self._is_nested, self._lives = 0, False, 0
        self.at: Positions | None = None  # of the sink's last epoch, which has these rows
        self.shown = Counter[str]()
        source: Any = _Source(JOBS[DEFAULT_JOB])
        nodes = (Node(0, Reading(source), (), ROWS, (), "t"), *source.job.nodes)
        sink: Any = SimpleNamespace(name="sink")
        writing = Node(len(nodes), Writing(sink), (Edge(nodes[-1].number),), None)
        self._expected = source.job.expected
        self._sources = {0: source}
        self._plan = plan(Graph(FLOW, (*nodes, writing), MAX_PARALLELISM), mechanism="transaction")
        self._session: Any = SimpleNamespace(
            name=FLOW,
            journal=lambda _: None,
            pin=lambda _, find: find(),
            patience=SimpleNamespace(retry=lambda ask, _: ask()),
        )

    def run(self) -> WorldOutcome:
        """To the end of the source."""
        return WorldOutcome(self._wrong(), self.options, self.taken, TRANSACTION)

    def _wrong(self) -> list[str]:
        try:
            with ExitStack() as patched:
                patched.enter_context(patch.object(database, "LOCK_S", 0.0))
                for owner, name, by in self._replaced:
                    patched.enter_context(patch.object(owner, name, by))
                for module in (hops, worker):
                    patched.enter_context(patch.object(module, "HopDatabase", partial(_Struck, self)))
                while not self._live():
                    self._lives += 1
                    require(self._lives < LIVES_MAX, "a flow comes to its end")
        except Exception as error:
            return [f"comes-to-rest: {type(error).__name__}: {error}"]
        finally:
            self._close_all()
            shutil.rmtree(self._root)
        lacks, more = self._expected - self.shown, self.shown - self._expected
        wrong = [f"no-loss: the sink lacks {sorted(lacks.elements())}"] if lacks else []
        return [*wrong, f"no-duplicate: the sink has too much {sorted(more.elements())}"] if more else wrong

    def point(self, name: str, strikes: Sequence[str]) -> str:
        options = (name, *strikes)
        option = 0 if self._is_nested else self._pick(options)
        if not self._is_nested:
            if option:
                self.taken[len(self.options)] = option
            self.options.append(options)
        if options[option] == POWER_FAILS:
            self._close_all()
            for path, content in self._synced.items():
                for ending in ("-wal", "-shm"):
                    Path(f"{path}{ending}").unlink(missing_ok=True)
                path.write_bytes(content)
        if options[option] in (DRIVER_DIES, POWER_FAILS):
            raise AllDied
        return options[option]

    def of_worker(self, store: HopDatabase, name: str, strikes: Sequence[str] = (WORKER_DIES,)) -> None:
        """A point of a worker, or of the driver, whose database that is."""
        folder = store.path.parent.name
        more = (DRIVER_DIES, POWER_FAILS)
        happened = self.point(f"{folder} {name}", more if folder == "driver" else (*strikes, *more))
        if happened == WORKER_DIES:
            raise WorkerDied
        if happened == IS_LATE:
            late = self._workers.pop(int(folder))
            with suppress(Retriable):  # what keeps a second process out
                self._start(int(folder))
                self._run_on()
            self._workers[int(folder)] = late

    def opened(self, store: HopDatabase) -> None:
        self.stores.append(store)
        self.committed(store)

    def committed(self, store: HopDatabase) -> None:
        (is_synced,) = store.run("PRAGMA synchronous")
        if is_synced != (0,) or store.path not in self._synced:
            self._synced[store.path] = store._db.serialize()

    def _live(self) -> bool:
        """One driver with its workers: False where it died."""
        try:
            self._hops = Hops(self._plan, self._root, WORKERS, self._sources, self._session)
            setup = HopSetup(self._root, self._sources, "memory", None)
            (_, reading), *_ = last_hop(self._plan, WORKERS).graph.readings()
            assert isinstance(reading.source, OutboxSource)
            self._last = replace(reading.source, setup=setup, hops=self._hops)
            self.at = self.at or self._last.initial()
            self._last.completed(self.at)
            for index in range(WORKERS):
                self._start(index)
            idle = 0
            while idle < 3:  # a timer is due within that time
                self._now_ms += 1
                idle = 0 if self._step() else idle + 1
            require(self._last.is_done(self.at), "nothing is left to do, and the flow goes on")
        except AllDied:
            self._close_all()
            return False
        return True

    def _step(self) -> bool:
        """One epoch of the sink, or bundle of a hop: of the first that has something to do, or by the script of
        another one before it."""
        doing: dict[str, Callable[[], bool]] = {"an epoch": self._epoch}
        for index, mine in self._workers.items():
            doing |= {f"{index}, hop {number}": partial(self._bundle, index, hop) for number, hop in enumerate(mine)}
        names = [*doing]
        first = names.index(self.point(names[0], names[1:]))
        return any(doing[name]() for name in (names[first], *names))

    def _bundle(self, index: int, hop: Hop) -> bool:
        try:
            return hop.step()
        except WorkerDied:
            self._close(index)
            self._start(index)
            return True

    def _run_on(self) -> None:
        """The workers do all they can, and nothing strikes them."""
        self._is_nested = True
        while any(hop.step() for mine in self._workers.values() for hop in mine):
            pass
        for store in self.stores:  # what is not needed is forgotten with it
            with HopDatabase.writing(store):
                pass
        self._is_nested = False

    def _epoch(self) -> bool:
        assert self.at is not None
        end = self._last.end(self.at)
        if end == self.at:
            return False
        strikes = (DRIVER_DIES, POWER_FAILS)
        if self.point("an epoch begins", (WORKERS_RUN_ON, *strikes)) == WORKERS_RUN_ON:
            self._run_on()
        rows = [
            part.rows.column(0) for split in self._last.splits(Range(self.at, end)) for part in self._last.read(split)
        ]
        self.point("an epoch is prepared", strikes)
        self.at = end
        for column in rows:
            self.shown.update(word for text in column.to_pylist() for word in text.split())
        self.point("an epoch is decided", strikes)
        self._last.completed(end)
        return True

    def _start(self, index: int) -> None:
        setup = HopSetup(self._root, self._sources, "memory", None)
        launch: Any = SimpleNamespace(index=index, parallelism=WORKERS, guarded=False)
        self._workers[index] = worker.hops_of(self._plan, launch, setup, now_ms=lambda: self._now_ms)

    def _close(self, index: int) -> None:
        for store in [store for store in self.stores if store.path.parent.name == str(index)]:
            store.close()

    def _close_all(self) -> None:
        self._workers.clear()
        for store in [*self.stores]:
            store.close()


class _Struck(HopDatabase):
    """One at whose steps something happens."""

    def __init__(self, world: TransactionWorld, *of_database: Any) -> None:
        self._world = world
        super().__init__(*of_database)
        world.opened(self)

    def close(self) -> None:
        if self in self._world.stores:
            self._world.stores.remove(self)
            super().close()

    @contextmanager
    def writing(self) -> Iterator[None]:
        self._world.of_worker(self, "begins to write", (WORKER_DIES, IS_LATE))
        with super().writing():
            yield
            self._world.of_worker(self, "has written")
        self._world.committed(self)
        self._world.of_worker(self, "has committed")
