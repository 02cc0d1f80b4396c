"""Where the workers of a flow are asked: `queries.json` in the flow's folder says it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from onefold.core.errors import OnefoldError
from onefold.engine.key_groups import key_groups_of_subtask
from onefold.engine.queries.views import key_schema, states_of
from onefold.engine.state.storage import Storage
from onefold.flow.graph.nodes import Graph

_NAME = "queries.json"
_PREFIX = "onefold-queries-"
_PATH_BYTES_MAX = 90  # of a socket's folder: with its name a path has at most 107


@dataclass(frozen=True, slots=True)
class Asked:
    """An operator that can be asked: the columns of its key, and the names of its states."""

    key: pa.Schema
    states: tuple[str, ...]

    @property
    def columns(self) -> list[str]:
        return [f"{field.name} {field.type}" for field in self.key]


@dataclass(frozen=True, slots=True)
class Told:
    """`sockets` are the workers', in the order of their key groups."""

    generation: int
    max_parallelism: int
    sockets: tuple[str, ...]
    operators: Mapping[str, Asked]


def asked(graph: Graph) -> dict[str, Asked]:
    """The operators that keep state by key, by their uids."""
    found = {node.uid: (node, states) for node in graph.nodes if node.uid and (states := states_of(node))}
    return {uid: Asked(key_schema(graph, node), tuple(states)) for uid, (node, states) in found.items()}


def told(storage: Storage) -> Told | None:
    """What `queries.json` says; None where nothing runs that can be asked."""
    content = storage.find(_NAME)
    try:
        found = json.loads(content or b"null")
        operators = {
            uid: Asked(pa.ipc.read_schema(pa.py_buffer(b64decode(of["key"]))), tuple(of["states"]))
            for uid, of in found["operators"].items()
        }
        sockets = tuple(str(each["socket"]) for each in found["workers"])
        return Told(int(found["generation"]), int(found["max_parallelism"]), sockets, operators)
    except (ValueError, TypeError, LookupError, AttributeError, pa.ArrowException, OSError):
        return None


class Place:
    """A driver's: a folder for the sockets of its workers, which only this user may enter. It goes with `close`; that
    of a driver that was killed with the flow's next start."""

    def __init__(self, graph: Graph, storage: Storage, workers: int) -> None:
        self._graph, self._storage, self._workers = graph, storage, workers
        self._written = b""
        self.folder = tempfile.mkdtemp(prefix=_PREFIX)
        if len(os.fsencode(self.folder)) > _PATH_BYTES_MAX:
            Path(self.folder).rmdir()
            self.folder = tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp")

    def tell(self, generation: int) -> None:
        """Say that it is this driver's workers who are asked from now on."""
        groups = self._graph.max_parallelism
        workers = []
        for index in range(self._workers):
            mine = key_groups_of_subtask(index, self._workers, groups)
            workers.append({"socket": socket_of(self.folder, index), "key_groups": [mine.start, mine.stop]})
        queryable = {node.uid for node in self._graph.nodes if node.queryable}
        operators = {
            uid: {"key": b64encode(of.key.serialize().to_pybytes()).decode(), "states": of.states}
            for uid, of in asked(self._graph).items()
            if uid in queryable
        }
        found = {"generation": generation, "max_parallelism": groups, "workers": workers, "operators": operators}
        self._written = json.dumps(found, indent=1).encode()
        with self._storage.locked():
            if (before := told(self._storage)) is not None:
                self._remove(before)
            self._storage.replace(_NAME, self._written, synced=False)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OnefoldError), self._storage.locked():
            if self._storage.find(_NAME) == self._written:
                self._storage.remove([_NAME])

    def _remove(self, before: Told) -> None:
        """The sockets of a driver that has ended without removing them, or is fenced."""
        for folder in {Path(socket).parent for socket in before.sockets} - {Path(self.folder)}:
            with suppress(OSError):
                if folder.name.startswith(_PREFIX) and folder.lstat().st_uid == os.geteuid():
                    shutil.rmtree(folder, ignore_errors=True)


def socket_of(folder: str, index: int) -> str:
    return f"{folder}/{index}.sock"
