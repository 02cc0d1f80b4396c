"""Schemas by their ids, from a Confluent Schema Registry, through confluent-kafka's own client."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any
from urllib.parse import urlsplit

import fastavro
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError

from onefold.core.errors import ConfigError, Retriable
from onefold.sources.kafka.sifting import Unparsable

__all__ = ["Registry", "registry"]

HEADER = 5  # a zero, and the schema's id in four bytes, big-endian

_NOT_FOUND = 404
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
            self._client = SchemaRegistryClient({"timeout": timeout_s, **config, **numbers})
        except (ValueError, TypeError) as error:
            said = _without_password(str(error))
            raise ConfigError(f"schema_registry: {said}. The names are those of confluent-kafka's client") from None
        self._schemas: dict[int, Any] = {}

    def writer(self, number: int) -> Any:
        """The schema with that id, in one piece. Raises `Unparsable`, not settled, for one it lacks."""
        if number not in self._schemas:
            schema = self._ask(f"schema {number}", lambda: self._client.get_schema(number))
            if schema is None:
                raise Unparsable(None, f"the registry has no schema with the id {number}", settled=False)
            if schema.schema_type not in (None, "AVRO"):
                raise Unparsable(None, f"the schema with the id {number} is no Avro schema, but {schema.schema_type}")
            self._schemas[number] = self._in_one_piece(schema, {})
        return self._schemas[number]

    def latest(self, subject: str) -> str:
        """The text of the subject's newest schema. Raises `ConfigError` for one that is not there."""
        found = self._ask(f"subject {subject!r}", lambda: self._client.get_latest_version(subject))
        if found is None:
            raise ConfigError(
                f"the schema registry at {self._where} has no subject {subject!r}: give avro_schema, what records are"
                " to be read as"
            )
        if found.schema.references:
            raise ConfigError(f"the newest schema of {subject!r} refers to others: give avro_schema, in one piece")
        return str(found.schema.schema_str)

    def _in_one_piece(self, schema: Schema, named: dict[str, Any]) -> Any:
        for reference in schema.references or []:
            subject, version = reference.subject or "", reference.version or 0
            what = f"version {version} of {subject!r}"
            found = self._ask(what, partial(self._client.get_version, subject, version))
            if found is None:
                raise Unparsable(None, f"the registry has no {what}, which a schema refers to", settled=False)
            self._in_one_piece(found.schema, named)
        text = json.loads(schema.schema_str or "")
        parsed = fastavro.parse_schema(text, named_schemas=named)
        return fastavro.schema.expand_schema(parsed) if schema.references else text

    def _ask(self, what: str, ask: Callable[[], Any]) -> Any:
        """The answer; None where the registry says that there is no such thing."""
        try:
            return ask()
        except SchemaRegistryError as error:
            if error.http_status_code == _NOT_FOUND:
                return None
            if error.http_status_code in (401, 403):
                raise ConfigError(
                    f"the schema registry at {self._where} refused {what}: {_without_password(str(error))}"
                ) from None
            said = _without_password(str(error))
            raise Retriable(f"the schema registry at {self._where} failed to give {what}: {said}") from None
        except Exception as error:  # its HTTP client's, after its own retries
            said = _without_password(repr(error))
            raise Retriable(f"the schema registry at {self._where} did not answer ({what}): {said}") from None


def _check_url(text: str) -> None:
    """Clients quote the part of a URL that they cannot read, and a password with an odd character is one."""
    try:
        for url in text.split(","):
            _ = urlsplit(url).port
    except ValueError:
        raise ConfigError(
            "the schema registry's URL cannot be read: write https://user:password@host:port, with odd characters "
            "percent-encoded (@ is %40, / is %2F, # is %23)"
        ) from None


def _without_password(text: str) -> str:
    """A URL may hold a user and a password."""
    return re.sub(r"//\S*@", "//", text)  # up to the last @: a password that is not percent-encoded may hold a slash


def registry(config: Mapping[str, str], timeout_s: float) -> Registry:
    """The registry of this process with that configuration."""
    return _registry(os.getpid(), tuple(sorted(config.items())), timeout_s)  # a forked child makes its own


@lru_cache(maxsize=16)
def _registry(_pid: int, config: tuple[tuple[str, str], ...], timeout_s: float) -> Registry:
    return Registry(dict(config), timeout_s)
