"""`with` for servers: whoever started one ends it, and what ran before is left running."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Owned(ABC):
    """Its `start` says in `_started_it` whether anything had to be started."""

    _started_it = False

    @abstractmethod
    def start(self) -> object: ...

    @abstractmethod
    def stop(self) -> object: ...

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._started_it:
            self.stop()
