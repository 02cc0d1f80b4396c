"""Schemas by their ids, from a Confluent Schema Registry, through confluent-kafka's own client.

Producers choose the ids, and others may register schemas: a schema that is wrong makes only its own records bad.
Answers have a bound in size and time. Redirects are not followed, since the client would send its credentials along.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any
from urllib.parse import urlsplit

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError

from onefold.core.errors import ConfigError, Retriable
from onefold.core.values.plain import plain
from onefold.sources.formats.values import Unparsable
from onefold.sources.kafka.formats.avro.limits import BadSchema, examined, loaded

HEADER = 5  # a zero, and the schema's id in four bytes, big-endian
SCHEMAS_MAX = 256  # are kept
MISSING_S = 30.0  # an id that the registry lacks, or refuses, is not asked for again so long

_IDS = range(2**31)
_ANSWER_BYTES_MAX = 4 * 1024 * 1024
_REFERENCES_MAX = 100
_SAID_MAX = 300
_NOT_FOUND, _REFUSED = 404, 403
# Settings of the client that it wants as numbers; ours are texts, as librdkafka's.
_NUMBERS = (
    "timeout",
    "cache.capacity",
    "cache.latest.ttl.sec",
    "max.retries",
    "retries.wait.ms",
    "retries.max.wait.ms",
)


class Registry:
    """One registry, asked for each schema once in a process: ids never change what they mean."""

    def __init__(self, config: Mapping[str, str], timeout_s: float) -> None:
        _check_url(config["url"])
        self._where = _without_password(config["url"])
        try:
            numbers = {name: float(config[name]) for name in _NUMBERS if name in config}
            settings: dict[str, Any] = {"timeout": timeout_s, "cache.capacity": SCHEMAS_MAX, **config, **numbers}
            self._client = SchemaRegistryClient(settings)
        except (ValueError, TypeError) as error:
            said = _without_password(str(error))
            raise ConfigError(
                "option-value", f"schema_registry: {said}. The names are those of confluent-kafka's client"
            ) from None
        session = self._client._rest_client.session
        session.headers["Accept-Encoding"] = "identity"
        session.event_hooks["response"].append(partial(_read_within_bounds, settings["timeout"]))
        self._known: dict[int, tuple[Any, float]] = {}  # a schema or why there is none, and until when

    def writer(self, number: int) -> Any:
        """The schema with that id, in one piece. Raises `Unparsable`, which is not permanent for one it lacks."""
        found, until_s = self._known.get(number, (None, 0.0))
        if time.monotonic() >= until_s:
            try:
                found, until_s = self._found(number), math.inf
            except Unparsable as error:
                found, until_s = error, math.inf if error.is_permanent else time.monotonic() + MISSING_S
            self._known.pop(number, None)
            if len(self._known) >= SCHEMAS_MAX:
                del self._known[next(iter(self._known))]
            self._known[number] = found, until_s
        if isinstance(found, Unparsable):
            raise Unparsable(None, found.reason, found.is_permanent)
        return found

    def _found(self, number: int) -> Any:
        if number not in _IDS:
            raise Unparsable(None, f"{number} is no schema's id: they are below {_IDS.stop}")
        try:
            schema = self._ask(f"schema {number}", lambda: self._client.get_schema(number))
            if schema is None:
                raise Unparsable(None, f"the registry has no schema with the id {number}", is_permanent=False)
            if schema.schema_type not in (None, "AVRO"):
                raise Unparsable(None, f"the schema with the id {number} is no Avro schema, but {schema.schema_type}")
            return self._in_one_piece(schema)
        except BadSchema as error:
            raise Unparsable(None, f"the schema with the id {number} {error}") from None
        except _Refused as error:
            raise Unparsable(None, f"the registry refuses the schema with the id {number}: {error}", False) from None

    def latest(self, subject: str) -> str:
        """The text of the subject's newest schema. Raises `ConfigError` for one that is not there."""
        try:
            found = self._ask(f"subject {subject!r}", lambda: self._client.get_latest_version(subject))
        except (BadSchema, _Refused) as error:
            raise ConfigError(
                "registry-subject-refused",
                f"the schema registry at {self._where} refused subject {subject!r}, or what it gave cannot be used:"
                f" {error}. Give avro_schema, what records are to be read as, or the right to read the subject",
            ) from None
        if found is None:
            raise ConfigError(
                "registry-subject-missing",
                f"the schema registry at {self._where} has no subject {subject!r}: give avro_schema, what records are"
                " to be read as",
            )
        if found.schema.references:
            raise ConfigError(
                "registry-schema-in-parts",
                f"the newest schema of {subject!r} refers to others: give avro_schema, in one piece",
            )
        return str(found.schema.schema_str)

    def _in_one_piece(self, schema: Schema) -> Any:
        text = loaded(schema.schema_str or "")
        if not schema.references:
            return text
        named: dict[str, Any] = {}
        self._name_referenced(schema, named, set())
        return examined(text, named)

    def _name_referenced(self, schema: Schema, named: dict[str, Any], seen: set[tuple[str, int]]) -> None:
        """The types that the schema refers to, those first that these refer to."""
        for reference in schema.references or []:
            subject, version = reference.subject or "", reference.version or 0
            if (subject, version) in seen:
                continue
            seen.add((subject, version))
            if len(seen) > _REFERENCES_MAX:
                raise BadSchema(f"refers to more than {_REFERENCES_MAX} others")
            what = f"version {version} of {subject!r}"
            found = self._ask(what, partial(self._client.get_version, subject, version))
            if found is None:
                raise Unparsable(None, f"the registry has no {what}, which a schema refers to", is_permanent=False)
            self._name_referenced(found.schema, named, seen)
            examined(loaded(found.schema.schema_str or ""), named)

    def _ask(self, what: str, ask: Callable[[], Any]) -> Any:
        """The answer; None where the registry says that there is no such thing. Raises `_Refused` and `BadSchema`,
        which concern this thing alone."""
        try:
            return ask()
        except SchemaRegistryError as error:
            status = error.http_status_code
            if status == _NOT_FOUND:
                return None
            said = _in_short(str(error))
            if status == _REFUSED:
                raise _Refused(said) from None
            if status == 401:
                raise ConfigError(
                    "registry-refused", f"the schema registry at {self._where} refused {what}: {said}"
                ) from None
            if 300 <= status < 400:
                raise ConfigError(
                    "registry-redirects",
                    f"the schema registry at {self._where} answers with a redirect, which is not followed. Give the URL"
                    " that it has now",
                ) from None
            raise Retriable(
                "registry-failed", f"the schema registry at {self._where} failed to give {what}: {said}"
            ) from None
        except BadSchema:
            raise
        except Exception as error:  # its HTTP client's, after its own retries
            said = _in_short(repr(error))
            raise Retriable(
                "registry-unreachable", f"the schema registry at {self._where} did not answer ({what}): {said}"
            ) from None


def _check_url(text: str) -> None:
    """Clients quote the part of a URL that they cannot read, and a password with an odd character is one."""
    try:
        for url in text.split(","):
            _ = urlsplit(url).port
    except ValueError:
        raise ConfigError(
            "url-unreadable",
            "the schema registry's URL cannot be read: write https://user:password@host:port, with odd characters "
            "percent-encoded (@ is %40, / is %2F, # is %23)",
        ) from None


class _Refused(Exception):
    """The registry lets us read others, but not this."""


def _read_within_bounds(timeout_s: float, response: Any) -> None:
    """Has the answer read before the client reads it, which would take any number of bytes, and any time."""
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise ValueError("it answers compressed, though it was asked not to")
    content, end_s = bytearray(), time.monotonic() + timeout_s
    for part in response.iter_raw():
        content += part
        if len(content) > _ANSWER_BYTES_MAX:
            raise BadSchema(f"has more than {_ANSWER_BYTES_MAX} bytes")
        if time.monotonic() > end_s:
            raise TimeoutError(f"the answer takes more than {timeout_s:.0f} s")
    response._content = bytes(content)


def _in_short(text: str) -> str:
    return plain(_without_password(text[: 2 * _SAID_MAX]), _SAID_MAX)


def _without_password(text: str) -> str:
    """A URL may hold a user and a password, which may hold a slash that should be escaped."""
    return re.sub(r"//[^\s]*@", "//", text)


def registry(config: Mapping[str, str], timeout_s: float) -> Registry:
    """The registry of this process with that configuration."""
    return _registry(os.getpid(), tuple(sorted(config.items())), timeout_s)  # a forked child makes its own


@lru_cache(maxsize=16)
def _registry(_pid: int, config: tuple[tuple[str, str], ...], timeout_s: float) -> Registry:
    return Registry(dict(config), timeout_s)
