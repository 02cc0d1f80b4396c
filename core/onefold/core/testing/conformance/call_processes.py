"""Runs a call in a process of its own, and kills that process at a chosen point of the call.

A helper process is spawned once, and forks a fresh child for each call: a child starts in milliseconds, and shares no
connection with anybody. The modules that an undisturbed child had to load, the helper loads too, for those to come.

Inside the call the child counts its own steps (each line and each return of the code in question, seen by
`sys.settrace`) and sends itself SIGKILL at the chosen one: no handler runs, no buffer is flushed, no connection is
closed properly. Between two lines, in C code or in a system call, a timer whose signal the kernel answers by ending the
process strikes the same way. Only children that were forked here are killed.
"""

from __future__ import annotations

import enum
import importlib
import io
import linecache
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import FrameType, TracebackType
from typing import Any, Protocol

from onefold.core.testing.conformance.promises import ProcessEnded

CALL_SECONDS_MAX = 60.0
WARM = (
    "onefold.core",
    "pandas",
    "pyarrow",
)  # what the parent has loaded of these, each child would load again


class Call(Protocol):
    """What a child does: pickles; `ready` does what comes before the call in question, and returns that."""

    def ready(self) -> Callable[[], Any]: ...


class When(enum.Enum):
    NEVER = "never"
    BEFORE = "before"
    STEP = "step"  # at the n-th step inside
    MOMENT = "moment"  # after so many seconds inside
    AFTER = "after"  # the answer is out already


@dataclass(frozen=True, slots=True)
class Point:
    """Where a process dies. `at` is a number of steps or of seconds."""

    when: When
    at: float = 0


NEVER = Point(When.NEVER)


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What became of a call: its answer or its error, or where it was struck before it had either."""

    answer: Any = None
    error: Exception | None = None
    struck: str = ""
    steps: int = 0
    seconds: float = 0.0
    loaded: tuple[str, ...] = ()  # modules that the child had to load, in their order

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.answer


class Processes:
    """The helper and its children. `modules` name the code whose steps count: packages with all that is in them."""

    def __init__(self, modules: Sequence[str]) -> None:
        self.modules = tuple(modules)
        self._helper: tuple[SpawnProcess, Connection] | None = None
        self._to_load: tuple[str, ...] = ()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._helper is None:
            return
        process, pipe = self._helper
        pipe.close()  # the helper reads its end, and leaves
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()

    def _started(self) -> Connection:
        if self._helper is None:
            context = multiprocessing.get_context("spawn")
            pipe, theirs = context.Pipe()
            process = context.Process(target=_help, args=(theirs,), daemon=True)
            try:
                process.start()
            except RuntimeError:  # in such a process, while it imports the script
                raise ProcessEnded from None
            theirs.close()
            self._helper = (process, pipe)
        return self._helper[1]

    def run(self, call: Call, point: Point = NEVER) -> CallOutcome:
        """One call in one child, which is gone when this returns. Raises TimeoutError if it does not end, and
        ProcessEnded where there is no helper."""
        work = pickle.dumps((call, point, self.modules))
        try:
            pipe = self._started()
            pipe.send(self._to_load)
            pipe.send_bytes(work)
            pid: int = pipe.recv()
            late = not pipe.poll(CALL_SECONDS_MAX)
            if late:
                os.kill(pid, signal.SIGKILL)  # not reaped yet: the helper answers only after it has reaped it
            data: bytes = pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise ProcessEnded from None
        if late:
            raise TimeoutError(f"{type(call).__name__} did not end within {CALL_SECONDS_MAX:.0f} s")
        outcome = _outcome(data, point)
        self._to_load = outcome.loaded
        return outcome


def _outcome(data: bytes, point: Point) -> CallOutcome:
    """What the child could say before it died: where it is about to strike, and then its answer."""
    stream = io.BytesIO(data)
    struck = "in the middle, by the timer" if point.when is When.MOMENT else "it died by itself"
    with suppress(EOFError, pickle.UnpicklingError):
        while True:
            said = pickle.load(stream)
            if isinstance(said, CallOutcome):
                return said
            struck = said
    return CallOutcome(struck=struck)


def _help(pipe: Connection) -> None:
    """The helper: forks a child for each call, and says what it heard from it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business: it closes the pipe
    with suppress(EOFError, BrokenPipeError):
        while True:
            for name in pipe.recv():
                with suppress(Exception):  # then each child loads it for itself
                    importlib.import_module(name)
            work = pipe.recv_bytes()
            hear, tell = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    os.close(hear)
                    _child(work, tell)
                finally:
                    os._exit(0)
            os.close(tell)
            pipe.send(pid)
            with open(hear, "rb") as stream:  # noqa: PTH123  # a descriptor, not a path
                data = stream.read()
            os.waitpid(pid, 0)
            pipe.send(data)


def _child(work: bytes, tell: int) -> None:
    with open(tell, "wb", buffering=0) as stream:
        say, known = stream.write, set(sys.modules)
        try:
            call, point, modules = pickle.loads(work)
            act = call.ready()
        except Exception as error:
            say(_pickled(CallOutcome(error=error)))
            return
        if point.when is When.BEFORE:
            say(pickle.dumps("before the call"))
            _die()
        steps = _Steps(modules, int(point.at) if point.when is When.STEP else 0, say)
        answer, raised = None, None
        begun = time.perf_counter()
        if point.when is When.MOMENT:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the kernel ends the process
            signal.setitimer(signal.ITIMER_REAL, max(point.at, 1e-6))
        else:
            steps.start()
        try:
            answer = act()
        except Exception as error:
            raised = error
        finally:
            steps.stop()
        signal.setitimer(signal.ITIMER_REAL, 0)
        seconds = time.perf_counter() - begun
        loaded = tuple(name for name in sys.modules if name not in known) if point.when is When.NEVER else ()
        say(_pickled(CallOutcome(answer, raised, "", steps.seen, seconds, loaded)))
        if point.when is When.AFTER:
            _die()


class _Steps:
    """Counts the lines and returns of some modules' code in this process, and strikes at the n-th."""

    def __init__(self, modules: Sequence[str], strike_at: int, say: Callable[[bytes], object]) -> None:
        self.seen = 0
        self._modules, self._strike_at, self._say = modules, strike_at, say

    def start(self) -> None:
        threading.settrace(self._enter)
        sys.settrace(self._enter)

    def stop(self) -> None:
        sys.settrace(None)
        threading.settrace(None)

    def _enter(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        return self._step if _is_within(frame.f_globals.get("__name__", ""), self._modules) else None

    def _step(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event in ("line", "return"):
            self.seen += 1
            if self.seen == self._strike_at:
                self._say(pickle.dumps(self._where(frame, event)))
                _die()
        return self._step

    def _where(self, frame: FrameType, event: str) -> str:
        """The line, and who of the subject's own code called it."""
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno, frame.f_globals).strip()
        where = f"{'on the return' if event == 'return' else 'before line'} at {_place(frame)}: `{line}`"
        caller = frame.f_back
        while caller is not None:
            if _is_within(caller.f_globals.get("__name__", ""), self._modules):
                where += f", from {_place(caller)}"
            caller = caller.f_back
        return where


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno} in {frame.f_code.co_qualname}"


def _is_within(module: str, packages: Sequence[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _pickled(outcome: CallOutcome) -> bytes:
    try:
        data = pickle.dumps(outcome)
        pickle.loads(data)
    except Exception:  # an answer or an error that doesn't travel: its text does
        what = outcome.error if outcome.error is not None else TypeError(f"{outcome.answer!r} does not pickle")
        error = RuntimeError(f"{type(what).__name__}: {what}")
        return pickle.dumps(CallOutcome(None, error, "", outcome.steps, outcome.seconds, outcome.loaded))
    return data
