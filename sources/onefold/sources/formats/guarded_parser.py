"""Runs a parser in a child process: values that crash its library become bad values, and the worker lives on.

It costs a fork for each batch, so only a task that follows one whose worker died does so (`spark.runtime.workers`). The
child has this process's memory, so no value is copied to it; its answer is pickled.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import select
import signal
import time
import warnings
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import pyarrow as pa

from onefold.core.errors import Retriable
from onefold.core.failpoints import deadly
from onefold.sources.formats.values import Parser, Unparsable, Values

T = TypeVar("T")

TIME_MAX_S = 300.0
# What a library's own fault ends a process with; another signal (out of memory: SIGKILL) is no fault of a value.
_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)


def in_task(parser: Parser, *, guarded: bool) -> Parser:
    """The parser as a task needs it."""
    if text := deadly():
        parser = _FaultyParser(parser, text)
    return GuardedParser(parser) if guarded else parser


class GuardedParser:
    """The same parser. Where it dies of several values, they are told apart as bad ones always are: by halves."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser

    def parse(self, values: Values) -> pa.RecordBatch:
        try:
            return in_child(lambda: self._parser.parse(values))
        except Unparsable:
            if len(values) > 1:
                raise
        in_child(lambda: self._parser.parse(values))
        reason = "it could not be read, and then it could: what parses it fails by chance"
        raise Unparsable(0, reason, is_permanent=False)


class _FaultyParser:
    """The same parser with the fault that a test plants."""

    def __init__(self, parser: Parser, text: bytes) -> None:
        self._parser, self._text = parser, text

    def parse(self, values: Values) -> pa.RecordBatch:
        if any(value is not None and self._text in value for value in values):
            signal.raise_signal(signal.SIGSEGV)
        return self._parser.parse(values)


def in_child(work: Callable[[], T]) -> T:
    """What `work` returns or raises. Raises `Unparsable` if the process dies of it."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the thread that forks is the only one that it needs
        child = os.fork()
    if child == 0:
        _answer(work, writing)
    os.close(writing)
    try:
        said = _read_all(reading)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    finally:
        os.close(reading)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        if os.WTERMSIG(status) not in _FAULTS:
            raise Retriable(
                "parser-died",
                f"the process that parses some values was ended by {name}. Nothing was decided: start again",
            )
        raise Unparsable(None, f"the library that parses it ends its process ({name})")
    is_good, answer = pickle.loads(said)
    if not is_good:
        raise answer
    result: T = answer
    return result


def _answer(work: Callable[[], Any], writing: int) -> NoReturn:
    faulthandler.disable()  # how it ends is its answer, and no trace for the worker's log
    for number in (signal.SIGTERM, signal.SIGINT):  # sent to a whole group, they are its driver's business
        signal.signal(number, signal.SIG_IGN)
    try:
        try:
            said = pickle.dumps((True, work()))
        except Exception as error:
            said = pickle.dumps((False, error))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(said)
    finally:
        os._exit(0)


def _read_all(reading: int) -> bytes:
    parts, end_s = list[bytes](), time.monotonic() + TIME_MAX_S
    while select.select([reading], [], [], max(0.0, end_s - time.monotonic()))[0]:
        part = os.read(reading, 1 << 20)
        if not part:
            return b"".join(parts)
        parts.append(part)
    raise Retriable(
        "parser-timeout", f"some values were not parsed within {TIME_MAX_S:.0f} s. Nothing was decided: start again"
    )
