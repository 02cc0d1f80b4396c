"""Chooses between the compiled helper and confluent-kafka's consumer, and says which one is used."""

from __future__ import annotations

import ctypes
import os
from typing import Literal, get_args

from onefold.clients.kafka.client_roles import CONSUMER
from onefold.core.errors import ConfigError
from onefold.sources.kafka.native.library import find

__all__ = ["CHOICES", "VARIABLE", "Choice", "check_choice", "described", "helper"]

Choice = Literal["auto", "off", "required"]
CHOICES = get_args(Choice)
VARIABLE = "ONEFOLD_COMPILED_FETCH"  # what "auto" means in this process

_told: set[str] = set()


def check_choice(choice: str) -> None:
    """Raise `ConfigError` for a choice that isn't one."""
    if choice not in CHOICES:
        raise ConfigError("option-value", f"compiled_fetch is one of {', '.join(CHOICES)}, not {choice!r}")


def helper(choice: str) -> ctypes.CDLL | None:
    """The compiled helper, if it is to be used. Raises `ConfigError` if it is required and can't be."""
    chosen = _effective(choice)
    if chosen == "off":
        return None
    found = find()
    if not isinstance(found, str):
        _tell(described(choice))
        return found
    if chosen == "required":
        raise ConfigError(
            "compiled-helper-missing",
            f"compiled_fetch is required, and the compiled helper cannot be used here: {found}. Build it on every "
            "machine that reads, or set compiled_fetch='auto'",
        )
    _tell(described(choice))
    return None


def described(choice: str = "auto") -> str:
    """How this process fetches records, in words."""
    if _effective(choice) == "off":
        return "Kafka records are fetched one by one: the compiled fetch is turned off"
    found = find()
    if isinstance(found, str):
        return f"Kafka records are fetched one by one: the compiled fetch is not used, {found}"
    return f"Kafka records are fetched in compiled batches (librdkafka {found.onefold_librdkafka().decode()})"


def _effective(choice: str) -> str:
    if choice != "auto":
        return choice
    given = os.environ.get(VARIABLE, "") or "auto"
    if given not in CHOICES:
        raise ConfigError("option-value", f"{VARIABLE} is one of {', '.join(CHOICES)}, not {given!r}")
    return given


def _tell(text: str) -> None:
    if text not in _told:
        _told.add(text)
        CONSUMER.logger.info("%s", text)
