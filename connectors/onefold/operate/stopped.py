"""A pipeline that does not run: what its store knows of it, its checkpoint, and the session of a command that changes
it."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

from onefold.clients.files import FileSystems, is_local, local_path
from onefold.core import ConfigError, EpochState, Retriable, Sink
from onefold.core.protocol.effects import StoreFacts
from onefold.core.waiting import Wait
from onefold.pipeline import Engine, Pipeline
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.drivers import driver_of
from onefold.store.job.move_session import MoveSession
from onefold.store.savepoint_notes import restoring

# How the names of the folders end that a restore makes beside a query's checkpoint: the new one, and what it replaces.
RESTORING, REPLACED = ".restoring", ".replaced"
_SPARKS = frozenset({"commits", "metadata", "offsets", "sources", "state"})


def somebody() -> str:
    """Who runs this command, and where. A container's user may have a number and no name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"


class StoppedPipeline:
    """What commands need of a pipeline that they do not run. `nothing` says, in errors, what was not done; `files`
    reach its checkpoint, by default on this machine only."""

    def __init__(self, pipeline: Pipeline, nothing: str, files: FileSystems | None = None) -> None:
        self.pipeline, self.name = pipeline, pipeline.name
        self.nothing = nothing
        self.files = files or FileSystems()
        is_engines = isinstance(pipeline.runtime, Engine)
        self.checkpoint = EngineFolder(pipeline) if is_engines else CheckpointFolder(pipeline.checkpoint)
        self.store = CheckpointStore(pipeline.store_url, lock_timeout_s=10)

    def close(self) -> None:
        self.store.close()

    def find(self) -> StoreFacts | None:
        """None where there is no store, or it does not know the pipeline."""
        facts = self.store.facts(self.name) if self.store.look() is not None else None
        return facts if facts is not None and facts.generation else None

    def facts(self) -> StoreFacts:
        """Raises ConfigError where there is no store, or it has nothing of the pipeline."""
        facts = self.find()
        if facts is not None and (facts.frozen is not None or facts.last is not None or facts.unfinished):
            return facts
        raise ConfigError(
            "pipeline-unknown",
            f"the checkpoint store at {self.store.database} has nothing of pipeline {self.name!r}: it was never started"
            " with this store, or from another directory. Start it, or correct its name or store",
        )

    def refuse_running(self) -> None:
        """Raise ConfigError where it may be running, as far as its store tells."""
        if (facts := self.find()) is None:
            return
        if restoring(self.store, self.name) is not None:
            facts = replace(facts, unfinished=())  # what is unfinished then is that restore's
        working = next((record for record in facts.unfinished if record.state is not EpochState.DAMAGED), None)
        if (driver := driver_of(self.store, self.name, facts.generation)) is not None:
            because = f"process {driver.pid} of this machine runs it"
            if driver.is_alive() is None:
                because = f"process {driver.pid} of {driver.host} has started it, and has not said that it ended"
        elif working is not None:
            because = f"its epoch {working.epoch} is {working.state.value}, and a driver may be at work at it"
        else:
            return
        raise ConfigError(
            "pipeline-may-run",
            f"pipeline {self.name!r} may be running: {because}. {self.nothing}. Stop it (`onefold stop`, or SIGTERM"
            " to its process); or, where you know it dead, run the command again with --take-over, which fences a"
            " driver that lives after all",
        )

    def end_driver(self, within_s: float) -> None:
        """End the process of this machine that runs it, as SIGTERM does, and wait for that. Raises ConfigError where
        there is none, Retriable where it does not end."""
        facts = self.facts()
        driver = driver_of(self.store, self.name, facts.generation)
        if driver is None or not driver.is_alive():
            raise ConfigError(
                "pipeline-not-here",
                f"no process of this machine runs pipeline {self.name!r}. {self.nothing}. Leave out --stop, or run the"
                " command where it runs",
            )
        if driver.is_held:
            raise ConfigError(
                "pipeline-held",
                f"process {driver.pid}, which runs pipeline {self.name!r}, would be started again by the one that holds"
                f" it. {self.nothing}. End it there: `onefold stop {self.name}` where that is a daemon, SIGTERM to an"
                " `onefold run`; then leave out --stop",
            )
        os.kill(driver.pid, signal.SIGTERM)
        wait = Wait(within_s, 0.05, 0.5)
        while driver.is_alive():
            if wait.left_s <= 0:
                raise Retriable(
                    "pipeline-not-stopped",
                    f"process {driver.pid}, which runs pipeline {self.name!r}, has not ended within {within_s:.0f} s."
                    f" {self.nothing}. Try again",
                )
            wait.pause()

    def refuse_changed(self, facts: StoreFacts) -> None:
        """Raise ConfigError where it went on since these facts were read."""
        if (self.find() or StoreFacts("", 0)) != facts:
            raise ConfigError(
                "pipeline-may-run",
                f"pipeline {self.name!r} went on, or was started, since this plan was made. {self.nothing}. Stop it,"
                " then run the command again",
            )

    def session(
        self,
        set_aside: Callable[[int], None] | None = None,
        added: Collection[str] = (),
        keeper: tuple[Sink, ...] = (),
    ) -> MoveSession:
        """One that has taken nothing over yet, and closes the store. `set_aside` is what a move does with the
        checkpoint, by default giving it another name; `added` are the sinks that the last epoch did not name; `keeper`
        is that of the engine's state, where the epoch is to have some."""
        of = self.pipeline
        can_read = self.files.can_read(of.checkpoint)
        with of.in_its_words():
            return MoveSession(
                self.name,
                (*of.everyone, *keeper),
                self.store,
                of.patience_s,
                [sink.name for sink in of.dead_letters],
                set_aside or self.checkpoint.set_aside,
                self.files if can_read else None,
                of.checkpoint if can_read else None,
                added,
            )


class CheckpointFolder:
    """What a pipeline calls its checkpoint, where Spark runs it. One that is elsewhere is left where it is."""

    GOES_ON = True  # whether a start goes on only with it

    def __init__(self, place: str) -> None:
        self.place = place
        self.is_elsewhere = not is_local(place)
        self.path = local_path(place)
        self.went_to: Path | None = None

    @property
    def is_there(self) -> bool:
        return not self.is_elsewhere and self.path.exists()

    @property
    def keeps_state(self) -> bool:
        """Whether the query has a state store: an aggregation, a join, a deduplication."""
        state = self.path / "state"
        return self.is_there and state.is_dir() and any(state.iterdir())

    def set_aside(self, epoch: int) -> None:
        """Rename it, so that its name says up to which epoch it is; what is not there stays so. Raises ConfigError."""
        if not self.is_there:
            return
        if self.path.is_symlink():
            raise ConfigError(
                "checkpoint-not-set-aside",
                f"the checkpoint {self.path} is a link, and only its directory can be renamed. Nothing was moved. Name"
                " the directory itself",
            )
        base = self.path.with_name(f"{self.path.name}.until-epoch-{epoch}")
        names = (base if number == 1 else base.with_name(f"{base.name}-{number}") for number in count(1))
        to = next(name for name in names if not os.path.lexists(name))
        try:
            self.path.rename(to)
        except OSError as error:
            raise ConfigError(
                "checkpoint-not-set-aside",
                f"the checkpoint {self.path} could not be renamed to {to.name}: {error.strerror}. Nothing was moved."
                " Run the command as the owner of its directory",
            ) from error
        self.went_to = to

    def removable(self) -> Iterator[Path]:
        """The directory, and those that a restore of a savepoint left beside it when it was cut short. Raises
        ConfigError for what is no checkpoint, or cannot be removed."""
        for path in self._here():
            _check(path, self.is_own)
            yield path

    def remove(self) -> None:
        for path in self._here():
            try:
                shutil.rmtree(path)
            except OSError as error:
                raise ConfigError(
                    "checkpoint-not-removed",
                    f"the checkpoint {path} could not be removed: {error}. The rest is reset: remove it yourself",
                ) from error

    def _here(self) -> list[Path]:
        if self.is_elsewhere:
            return []
        paths = [self.path.with_name(self.path.name + end) for end in ("", RESTORING, REPLACED)]
        return [path for path in paths if os.path.lexists(path)]

    def is_own(self, name: str) -> bool:
        """Whether a checkpoint has something of that name."""
        return name in _SPARKS


class EngineFolder(CheckpointFolder):
    """The folder of a flow that the engine runs, in its checkpoint: its state, and the note that it has written. Where
    the flow stands the store knows."""

    GOES_ON = False

    def __init__(self, pipeline: Pipeline) -> None:
        from onefold.engine.state import OWN_FILES, folder_of  # the engine, which pipelines on Spark do without

        super().__init__(f"{pipeline.checkpoint}/{folder_of(pipeline.name)}")
        self._own = OWN_FILES | {"epochs"}

    @property
    def keeps_state(self) -> bool:
        return (self.path / "ledger.json").exists()

    def set_aside(self, epoch: int) -> None:
        del epoch

    def is_own(self, name: str) -> bool:
        return name.isdigit() or name.removesuffix(".tmp") in self._own


def _check(path: Path, is_own: Callable[[str], bool]) -> None:
    if path.is_symlink() or not path.is_dir():
        raise ConfigError(
            "not-a-checkpoint",
            f"the checkpoint {path} is a link or a file: nothing was removed. Name the directory itself",
        )
    if not all(os.access(each, os.R_OK | os.W_OK | os.X_OK) for each in (path, path.parent)):
        raise ConfigError(
            "checkpoint-not-removed",
            f"this user may not remove the checkpoint {path}: nothing was removed. Run the command as its owner",
        )
    if strange := sorted(each.name for each in path.iterdir() if not (each.name.startswith(".") or is_own(each.name))):
        raise ConfigError(
            "not-a-checkpoint",
            f"the checkpoint {path} has {strange[0]!r}, which no checkpoint has: nothing was removed. Is the pipeline's"
            " checkpoint right?",
        )
