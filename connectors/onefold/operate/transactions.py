"""What should become of each prepared transaction in a database, and seeing to it; `onefold txn` shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from onefold.core import Committable, ConfigError, EpochState, LastResource, OnefoldError
from onefold.core.protocol.coordinator import Coordinator
from onefold.core.protocol.effects import StoreFacts
from onefold.core.protocol.epoch import Started, start, sweep
from onefold.core.protocol.in_doubt import Fate, Survey, resolve, survey
from onefold.sinks.postgres.admin import Operations, PreparedTransaction
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.job.session import not_waiting

START = "start the pipeline: its recovery resolves it"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A prepared transaction of onefold's, what should become of it, and why."""

    transaction: PreparedTransaction
    fate: Fate
    because: str


class Transactions:
    """The prepared transactions of one database, held against one checkpoint store."""

    def __init__(self, operations: Operations, store_url: str | None) -> None:
        self._operations = operations
        self._store = CheckpointStore(store_url or operations.store_url(), lock_timeout_s=10)

    def close(self) -> None:
        self._store.close()
        self._operations.close()

    def look(self, pipeline: str | None = None) -> tuple[list[Verdict], list[PreparedTransaction]]:
        """Those of onefold (of one pipeline, where it is named), and everybody else's. Changes nothing."""
        listed = self._operations.prepared()
        ours = [t for t in listed if t.gid and pipeline in (None, t.pipeline)]
        verdicts: list[Verdict] = []
        for name in dict.fromkeys(t.pipeline for t in ours):
            verdicts += self._verdicts(name, [t for t in ours if t.pipeline == name])
        return verdicts, [t for t in listed if not t.gid]

    def resolve(self, pipeline: str, gid: str | None = None) -> dict[Committable, Fate]:
        """Commit and roll back what can be without taking the pipeline over; of one transaction, or of all."""
        with self._driver(pipeline, lambda t: gid in (None, t.name)) as driver:
            found = self._survey(pipeline, driver)
            self._refuse_theirs(pipeline, found.facts, gid)
            return driver.run(resolve(found, lambda committable: gid in (None, committable.handle)))

    def take_over(self, pipeline: str) -> Started:
        """A new generation, which fences every driver of the pipeline, its recovery and a sweep: what every start does,
        except that nobody holds a query's checkpoint against the store."""
        with self._driver(pipeline, lambda _: True) as driver:
            facts = self._survey(pipeline, driver).facts
            named = _sinks_of(facts) or tuple(driver.committers)
            missing = [sink for sink in named if sink not in driver.committers]
            if missing:
                raise ConfigError(
                    "sinks-elsewhere",
                    f"pipeline {pipeline!r} also writes to {', '.join(missing)}, which this database doesn't have:"
                    " start the pipeline itself, which recovers all of its sinks. Nothing was changed",
                )
            for sink in named:
                self._operations.register(pipeline, sink)
            started = driver.run(start(named, None))
            driver.run(sweep(started.generation, named))
            return started

    def _verdicts(self, pipeline: str | None, ours: list[PreparedTransaction]) -> Iterator[Verdict]:
        here = [t for t in ours if t.is_here]
        for t in ours:
            if not t.is_here:
                yield Verdict(t, Fate.UNKNOWN, f"prepared in database {t.database!r}: name that one with --postgres")
        if pipeline is None:
            for t in here:
                yield Verdict(t, Fate.UNKNOWN, "its pipeline has a name too long for it, and no ledger here; " + START)
        elif here:
            sessions = self._operations.sessions(pipeline)
            try:
                with self._driver(pipeline) as driver:
                    found = self._survey(pipeline, driver)
            except OnefoldError as error:
                yield from (Verdict(t, Fate.UNKNOWN, error.message) for t in here)
                return
            named = {(c.sink, c.handle): fate for c, fate in found.fates.items()}
            decided = _decided(found.facts)
            for t in here:
                if not t.is_ours:
                    yield _theirs(t, (t.sink or "", t.name) in decided)
                    continue
                # Prepared after the list was made, or gone since: what a running pipeline does all the time.
                fate = named.get((t.sink or "", t.name), Fate.LEAVE)
                yield Verdict(t, fate, _because(t, fate, found.facts, sessions))

    @contextmanager
    def _driver(
        self, pipeline: str, finishes: Callable[[PreparedTransaction], bool] = lambda _: False
    ) -> Iterator[Coordinator]:
        """A driver over those of the pipeline's sinks that are in this database, in the role that it needs."""
        if not self._operations.has_tables():
            raise ConfigError(
                "ledger-missing",
                f"there are no onefold tables in schema {self._operations.schema!r}: name the sinks' own in the"
                " pipeline, or with --ledger",
            )
        listed = [t for t in self._operations.prepared() if t.pipeline == pipeline and t.is_here]
        sinks = {sink for name, sink in self._operations.sinks() if name == pipeline}
        sinks |= {t.sink for t in listed if t.sink}
        with ExitStack() as stack:
            committers = {}
            for sink in sorted(sinks):
                owners = {t.owner for t in listed if t.sink == sink and t.is_ours and finishes(t)}
                committers[sink] = self._operations.committer(pipeline, sink, owners)
                stack.callback(committers[sink].close)
            yield Coordinator(pipeline, self._store, committers, not_waiting)

    def _refuse_theirs(self, pipeline: str, facts: StoreFacts, gid: str | None) -> None:
        """What a manifest names must be committed, and no less: this session may not."""
        decided = _decided(facts)
        for t in self._operations.prepared():
            if t.is_here and not t.is_ours and t.pipeline == pipeline and gid in (None, t.name):
                verdict = _theirs(t, (t.sink or "", t.name) in decided)
                if verdict.fate is Fate.COMMIT:
                    raise ConfigError("transaction-of-another-role", f"{t.name!r}: {verdict.because}")

    def _survey(self, pipeline: str, driver: Coordinator) -> Survey:
        """Raises ConfigError where nothing shows that this store is the pipeline's store."""
        store_id = self._store.look()
        if store_id is None:
            raise ConfigError(
                "store-missing",
                f"there is no checkpoint store at {self._store.database}: name the pipeline's own store in"
                " its file, or with --store",
            )
        found = driver.run(survey(tuple(driver.committers)))
        if found.facts.generation == 0:
            raise ConfigError(
                "pipeline-unknown",
                f"the checkpoint store at {self._store.database} knows no pipeline {pipeline!r}: name the store that"
                " it has in its pipeline, or with --store, or " + START,
            )
        if not found.is_proven and not any(_shares(driver, sink, store_id) for sink in driver.committers):
            raise ConfigError(
                "store-unproven",
                f"pipeline {pipeline!r} has committed nothing here yet, so nothing shows that the checkpoint store at"
                f" {self._store.database} is the one it has: {START}",
            )
        return found


def _shares(driver: Coordinator, sink: str, store_id: str) -> bool:
    committer = driver.committers[sink]
    return isinstance(committer, LastResource) and committer.shares_store(store_id)


def _decided(facts: StoreFacts) -> set[tuple[str, str]]:
    return {(c.sink, c.handle) for r in facts.unfinished if r.state is EpochState.DECIDED for c in r.manifest}


def _theirs(transaction: PreparedTransaction, is_decided: bool) -> Verdict:
    prepared_by = f"prepared by role {transaction.owner!r}, of which this session's is no member"
    if is_decided:
        because = (
            f"its epoch was decided, and it was {prepared_by}: GRANT it that role, or connect as it or a superuser"
        )
        return Verdict(transaction, Fate.COMMIT, because)
    return Verdict(
        transaction, Fate.LEAVE, f"{prepared_by}, and no manifest names it: whatever it is, no pipeline waits"
    )


def _sinks_of(facts: StoreFacts) -> tuple[str, ...]:
    records = [r for r in (facts.complete, *facts.unfinished) if r is not None]
    return tuple(dict.fromkeys(sink for record in records for sink in record.sinks))


def _because(transaction: PreparedTransaction, fate: Fate, facts: StoreFacts, sessions: int) -> str:
    gid = transaction.gid
    assert gid is not None, transaction
    damaged = [r.epoch for r in facts.unfinished if r.state is EpochState.DAMAGED]
    match fate:
        case Fate.COMMIT:
            return f"epoch {gid.epoch} was decided, and its manifest names it"
        case Fate.ROLL_BACK if gid.generation < facts.generation:
            return f"generation {gid.generation} is over (now {facts.generation}), and no manifest names it"
        case Fate.ROLL_BACK:
            return f"epoch {gid.epoch} is over, and its manifest doesn't name it"
        case Fate.LEAVE if gid.epoch in damaged:
            return (
                f"epoch {gid.epoch} is damaged: mend what its error names, then run `onefold recover` of the pipeline"
                f" with --accept-damage {gid.epoch}"
            )
        case Fate.LEAVE:
            return (
                f"epoch {gid.epoch} runs in generation {gid.generation}, the newest (sessions connected: {sessions}):"
                f" its driver may decide it. If that is dead, {START}, or resolve it with --take-over"
            )
        case Fate.UNKNOWN:
            return (
                f"generation {gid.generation} is above the store's {facts.generation}: the store is an older copy, or"
                " another pipeline's; name the right one in the pipeline, or with --store"
            )
