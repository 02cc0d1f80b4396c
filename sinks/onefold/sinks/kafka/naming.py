"""The sink's names in Kafka, which other processes read after a crash: transactional ids, handles, ledger keys."""

from __future__ import annotations

import hashlib
import re
import uuid
from dataclasses import dataclass
from urllib.parse import unquote

from onefold.core.checks import require
from onefold.core.errors import ConfigError
from onefold.sinks.name_parts import part

PREFIX_BYTES_MAX = 64
ID_BYTES_MAX = 255  # Kafka takes more, but tools and ACLs of such a length are no help to anybody

LEDGER_PREFIX = "onefold_progress"  # of the topics of pipelines that name none

_ID = re.compile(r"([0-9]{1,18})/([0-9a-f]{32})/([0-9]{1,18})")


def check_prefix(prefix: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9._-]+", prefix) or len(prefix) > PREFIX_BYTES_MAX:
        raise ConfigError(
            "option-value",
            f"transactional_id_prefix={prefix!r} must be 1 to {PREFIX_BYTES_MAX} letters, digits, dots, dashes or "
            "underscores: every transactional id of the sink begins with it and a slash, and so may an ACL",
        )


def ledger_topic(pipeline: str) -> str:
    """The ledger topic of a pipeline that names none; never the same for two pipelines."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", pipeline):
        return f"{LEDGER_PREFIX}-{pipeline}"
    # Kafka allows few other characters in a topic's name, and takes a dot and an underscore for the same.
    digest = hashlib.sha256(pipeline.encode()).hexdigest()[:24]
    return f"{LEDGER_PREFIX}--{re.sub(r'[^A-Za-z0-9_-]', '-', pipeline)}-{digest}"


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one sink of one pipeline.

    A transactional id is `<prefix>/<pipeline>/<sink>/<generation>/<process>/<number>`: it belongs to one process, and
    no other ever uses it, so that a process which wakes late can only end its own transactions.
    """

    prefix: str
    pipeline: str
    sink: str

    @property
    def ids(self) -> str:
        """The prefix of this sink's transactional ids, and of no others."""
        return f"{self.prefix}/{part(self.pipeline)}/{part(self.sink)}/"

    @property
    def ledger(self) -> str:
        """The transactional id of the ledger row's writer, and the row's key in the ledger topic."""
        return f"{self.ids}ledger"

    @property
    def notes(self) -> str:
        """The prefix of the keys of a keyed sink's notes, and of no others; a generation follows."""
        return f"{self.ids.removesuffix('/')}#"

    def noted(self, key: str) -> int | None:
        """The generation whose note this key is of; None for a key of anything else."""
        found = re.fullmatch(rf"{re.escape(self.notes)}([0-9]{{1,18}})", key)
        return int(found[1]) if found else None

    def pipeline_of(self, key: str) -> str | None:
        """The pipeline whose sink of the same name wrote a note under this key; None for a key of anything else."""
        found = re.fullmatch(rf"{re.escape(self.prefix)}/([^/]+)/{re.escape(part(self.sink))}#[0-9]{{1,18}}", key)
        return unquote(found[1]) if found else None

    @property
    def probe(self) -> str:
        """The transactional id with which `open` tries its permissions and its timeout."""
        return f"{self.ids}probe"

    def transactional_id(self, generation: int, process: uuid.UUID, number: int) -> str:
        name = f"{self.ids}{generation}/{process.hex}/{number}"
        require(len(name.encode()) <= ID_BYTES_MAX, f"a transactional id that is too long: {name}")
        return name

    def generation(self, transactional_id: str) -> int | None:
        """The generation of one of this sink's ids for attempts; None for any other id."""
        found = _ID.fullmatch(transactional_id.removeprefix(self.ids))
        return int(found[1]) if transactional_id.startswith(self.ids) and found else None


@dataclass(frozen=True, slots=True)
class Handle:
    """Identifies one transaction for ever: no other has the same producer id and epoch.

    As a text it is `<transactional id>#<producer id>.<producer epoch>`.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int

    def __str__(self) -> str:
        return f"{self.transactional_id}#{self.producer_id}.{self.producer_epoch}"

    @classmethod
    def parse(cls, text: str) -> Handle:
        transactional_id, _, producer = text.rpartition("#")
        producer_id, _, producer_epoch = producer.partition(".")
        return cls(transactional_id, int(producer_id), int(producer_epoch))
