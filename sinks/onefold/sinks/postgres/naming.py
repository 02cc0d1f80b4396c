"""Names that both sides of a crash can read: prepared transactions, stages, attempts."""

from __future__ import annotations

import hashlib
import re
import uuid
from dataclasses import dataclass
from urllib.parse import unquote

from onefold.clients.postgres.own_schema import OWN_SCHEMA
from onefold.clients.postgres.quoting import identifier
from onefold.core.checks import require
from onefold.sinks.name_parts import TableName, part

BOOKKEEPING = OWN_SCHEMA  # where the user names no other
SENT_AGAIN = "onefold_sent_again"  # the table of the dead letters that the daemon sent again, beside the ledger
GID_BYTES_MAX = 199  # Postgres: "must be less than 200 bytes long"


class TargetName(TableName):
    """A table's name, in SQL too."""

    __slots__ = ()

    @property
    def sql(self) -> str:
        return identifier(self.name) if self.schema is None else f"{identifier(self.schema)}.{identifier(self.name)}"


def gid_prefix(pipeline: str, sink: str, schema: str = BOOKKEEPING) -> str:
    """What the names of all prepared transactions of one sink of one pipeline start with, and no others'.

    They count in the whole database, and another bookkeeping schema may have a sink and a pipeline of these names.
    """
    elsewhere = "" if schema == BOOKKEEPING else f"@{hashlib.sha256(schema.encode()).hexdigest()[:12]}"
    return f"of/{part(pipeline)}/{part(sink)}{elsewhere}/"


@dataclass(frozen=True, slots=True)
class Gid:
    """The name of a prepared transaction: `of/<pipeline>/<sink>/<generation>/<epoch>/<attempt>`.

    The attempt is random, so nobody can take the name before the task does.
    """

    prefix: str
    generation: int
    epoch: int
    attempt: uuid.UUID

    def __str__(self) -> str:
        text = f"{self.prefix}{self.generation}/{self.epoch}/{self.attempt.hex}"
        require(len(text.encode()) <= GID_BYTES_MAX, f"a transaction's name that is too long: {text}")
        return text

    @classmethod
    def parse(cls, prefix: str, text: str) -> Gid | None:
        """None if `text` is not a name that starts with `prefix` and that this module made."""
        parts = text.removeprefix(prefix).split("/")
        if not text.startswith(prefix) or len(parts) != 3 or not (parts[0].isdigit() and parts[1].isdigit()):
            return None
        try:
            gid = cls(prefix, int(parts[0]), int(parts[1]), uuid.UUID(hex=parts[2]))
        except ValueError:
            return None
        return gid if str(gid) == text else None

    @classmethod
    def parse_any(cls, text: str) -> Gid | None:
        """As `parse`, for whichever pipeline and sink; None for other people's transactions."""
        prefix = re.match("of/[^/]*/[^/]*/", text)
        return cls.parse(prefix[0], text) if prefix else None


def names_in(prefix: str) -> tuple[str, str] | None:
    """The pipeline and the sink that `gid_prefix` made this of; None if a name was too long to be kept whole."""
    _, pipeline, sink, _ = prefix.split("/")
    sink, _, elsewhere = sink.partition("@")
    names = unquote(pipeline), unquote(sink)
    return names if gid_prefix(*names) == prefix.replace(f"@{elsewhere}/", "/") else None


def stage_name(pipeline: str, sink: str) -> str:
    """What the names of the stage tables of one sink of one pipeline start with, and no others'."""
    return "onefold_stage_" + hashlib.sha256(gid_prefix(pipeline, sink).encode()).hexdigest()[:32]
