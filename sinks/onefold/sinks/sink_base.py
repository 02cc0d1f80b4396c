"""What all sinks have in common as Python objects: their name, and the settings that they were made of."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar


class Named(Protocol):
    @property
    def name(self) -> str: ...


S = TypeVar("S", bound=Named)


class SettledSink(Generic[S]):
    """A sink as its settings describe it."""

    _settings: S

    @property
    def name(self) -> str:
        return self._settings.name

    @property
    def settings(self) -> S:
        """What the sink was told, for those who check its work. It may hold a password: not for logs."""
        return self._settings

    def store_url(self) -> str | None:
        """None: it has no database that could be the checkpoint store."""
        return None

    def writers_max(self) -> int | None:
        """None: as many tasks may write as there are."""
        return None
