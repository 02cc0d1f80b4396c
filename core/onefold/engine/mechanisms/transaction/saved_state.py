"""A hop's state in its worker's database: snapshots as any backend stores them, as files within the transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from onefold.engine.mechanisms.transaction.database import HopDatabase
from onefold.engine.state.snapshot import read_footer
from onefold.engine.state.state_backend import StateBackend
from onefold.engine.state.storage import Storage

__all__ = ["FilesInDatabase"]


class FilesInDatabase(Storage):
    """The files of a chain, as far as backends use a storage. What is written is there with the transaction."""

    def __init__(self, database: HopDatabase, chain: int) -> None:
        super().__init__(str(database.path), f"chain {chain}")
        self._run, self._prefix = database.run, f"file {chain} "

    def path(self, name: str = "") -> str:
        return f"{self.root}: {self._prefix}{name}"

    def write(self, name: str, content: Iterable[bytes | pa.Buffer]) -> None:
        self._run("INSERT INTO kept VALUES (?, ?)", self._prefix + name, b"".join(self._counted(content)))

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        size = self.sizes([name])[name]
        if size is None:
            raise FileNotFoundError(name)
        begin = offset if offset >= 0 else max(0, size + offset)
        query = "SELECT substr(value, ?, ?) FROM kept WHERE name = ?"
        return bytes(self._run(query, begin + 1, size if length is None else length, self._prefix + name)[0][0])

    def sizes(self, names: Sequence[str]) -> dict[str, int | None]:
        query = "SELECT length(value) FROM kept WHERE name = ?"
        found = {name: self._run(query, self._prefix + name) for name in names}
        return {name: rows[0][0] if rows else None for name, rows in found.items()}

    def remove(self, names: Iterable[str]) -> None:
        """What a backend could not store goes with the transaction."""

    def save(self, backend: StateBackend, number: int) -> str:
        """The backend's state as it is, in the place of what was saved before. Returns its handle."""
        frozen = backend.freeze(number)
        try:
            handle = frozen.store()
        finally:
            frozen.release()
        footer, own = read_footer(self, handle)
        kept = [self._prefix + name for name in (own.name, *(piece.name for piece in footer.pieces))]
        of_chain = "DELETE FROM kept WHERE substr(name, 1, ?) = ? AND name NOT IN"
        self._run(f"{of_chain} ({', '.join('?' * len(kept))})", len(self._prefix), self._prefix, *kept)
        return handle
