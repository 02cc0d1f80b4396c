"""What waits on a channel for its turn: a bounded part of it in memory, the rest in a file."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from typing import BinaryIO

import pyarrow as pa

from onefold.core.errors import OutOfResources
from onefold.engine.dataflow.items import Item, size_bytes

__all__ = ["SpillQueue"]

MEMORY_BYTES_MAX = 16 << 20  # of one channel; twice what a worker lets a channel hold before its sender waits


class SpillQueue:
    """A queue of items, whose batches beyond `memory_max` bytes go through a file without a name."""

    def __init__(self, memory_max: int = MEMORY_BYTES_MAX) -> None:
        self._items: deque[Item | tuple[int, int]] = deque()  # in the file: where, and how many bytes
        self._memory_max, self._memory = memory_max, 0
        self._file: BinaryIO | None = None
        self._filed = self._end = 0  # batches that are in the file, and its length

    def __len__(self) -> int:
        return len(self._items)

    def append(self, item: Item) -> None:
        size = size_bytes(item)
        if isinstance(item, pa.RecordBatch) and self._memory + size > self._memory_max:
            self._items.append(self._write(item))
        else:
            self._items.append(item)
            self._memory += size

    def popleft(self) -> Item:
        item = self._items.popleft()
        if isinstance(item, tuple):
            return self._read(*item)
        self._memory -= size_bytes(item)
        return item

    def _write(self, batch: pa.RecordBatch) -> tuple[int, int]:
        """Raises OutOfResources where there is no room for it."""
        content = pa.BufferOutputStream()
        with pa.ipc.new_stream(content, batch.schema) as stream:
            stream.write_batch(batch)
        buffer = content.getvalue()
        try:
            self._file = self._file or tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # it goes with the process
            left = memoryview(buffer)
            while left:
                left = left[os.pwrite(self._file.fileno(), left, self._end + buffer.size - len(left)) :]
        except OSError as error:
            self._drop()
            raise OutOfResources(
                "exchange-disk-full",
                "rows of an epoch that wait until those of other workers are processed cannot be kept in"
                f" {tempfile.gettempdir()}: {error.strerror}. Make room there, name another folder in TMPDIR, or let"
                " the source give fewer records an epoch",
            ) from error
        place = self._end, buffer.size
        self._end, self._filed = self._end + buffer.size, self._filed + 1
        return place

    def _read(self, at: int, size: int) -> pa.RecordBatch:
        assert self._file is not None
        content = bytearray()
        while len(content) < size:
            content += os.pread(self._file.fileno(), size - len(content), at + len(content))
        self._filed -= 1
        if not self._filed:
            self._drop()
        return pa.ipc.open_stream(pa.py_buffer(content)).read_next_batch()

    def _drop(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._end = None, 0
