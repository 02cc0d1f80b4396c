"""The last lines of what is logged of each pipeline."""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from functools import partial

from onefold.core.checks import present
from onefold.daemon.hosting.messages import LogLine
from onefold.spark.errors.exits import is_of_py4j
from onefold.store.job.logs import current

_LINES_MAX = 200  # of a pipeline
_CHARACTERS_MAX = 4000  # of a line: of a traceback its end


class LogTail(logging.Handler):
    """Keeps them. A line that names no pipeline is of all of `everyone`. What is said of each epoch is left out: it
    would soon be all that there is."""

    def __init__(self, everyone: Sequence[str] = ()) -> None:
        super().__init__()
        self._everyone = everyone
        self._lines: defaultdict[str, deque[LogLine]] = defaultdict(partial(deque, maxlen=_LINES_MAX))
        self._changing = present(self.lock, "a handler has one")  # which is free in a fork, whoever held it
        self.addFilter(lambda record: record.name != "onefold.epochs" and not is_of_py4j(record))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            said = self.format(record)
        except Exception:  # whoever logs what has no form goes on
            self.handleError(record)
            return
        said = said.encode(errors="backslashreplace").decode()  # of a file's name, which need be no UTF-8
        shown = said if len(said) <= _CHARACTERS_MAX else f"...{said[-_CHARACTERS_MAX:]}"
        line = LogLine(at_s=record.created, level=record.levelname.lower(), message=shown)
        named = current().get("pipeline")
        for name in self._everyone if named is None else (str(named),):
            self.add(name, [line])

    def add(self, pipeline: str, lines: Iterable[LogLine]) -> None:
        """Which another process has logged."""
        with self._changing:
            self._lines[pipeline].extend(lines)

    def of(self, pipeline: str) -> list[LogLine]:
        """The oldest first."""
        with self._changing:
            return list(self._lines[pipeline])

    def take(self, pipeline: str) -> tuple[LogLine, ...]:
        """Those since the last call."""
        with self._changing:
            return tuple(self._lines.pop(pipeline, ()))
