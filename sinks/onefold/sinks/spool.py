"""Rows that wait outside of the database until their task prepares."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa

__all__ = ["Spool"]


class Spool:
    """Record batches of one schema in a file without a name, which goes with the process."""

    def __init__(self, schema: pa.Schema) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # `close` ends it
        self._stream = pa.ipc.new_stream(self._file, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._stream.write_batch(batch)

    def read(self) -> Iterator[pa.RecordBatch]:
        """Once, after the last `write`."""
        self._stream.close()
        self._file.seek(0)
        yield from pa.ipc.open_stream(self._file)

    def close(self) -> None:
        with suppress(OSError):  # what is left to be written, where there is no room for it
            self._file.close()
