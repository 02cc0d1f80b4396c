"""The compiled helper, found at run time, or the reason why it is not used; and whether it is wanted."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint, c_void_p
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from confluent_kafka import cimpl

from onefold.clients.kafka.client_roles import CONSUMER
from onefold.core.checks import require
from onefold.core.errors import ConfigError
from onefold.sources.kafka.native.building import LIBRARY, source_hash

__all__ = [
    "CHOICES",
    "LIBRARY_VARIABLE",
    "SAID_ERROR",
    "SAID_EVENT",
    "VARIABLE",
    "Buffers",
    "Choice",
    "Gathered",
    "Said",
    "check_choice",
    "described",
    "find",
    "helper",
]

LIBRARY_VARIABLE = "ONEFOLD_FETCH_LIBRARY"  # another library than the one in this package: for the sanitizers' tests
Choice = Literal["auto", "off", "required"]
CHOICES = get_args(Choice)
VARIABLE = "ONEFOLD_COMPILED_FETCH"  # what "auto" means in this process

SAID_EVENT, SAID_ERROR = 1, 2  # and log lines are 3


class Gathered(ctypes.Structure):
    """fetch.c's onefold_gathered."""

    _fields_ = (
        ("arrived", c_int64),
        ("records", c_int64),
        ("value_bytes", c_int64),
        ("key_bytes", c_int64),
        ("headers", c_int64),
        ("header_name_bytes", c_int64),
        ("header_value_bytes", c_int64),
        ("reached", c_int64),
        ("stray", c_int64),
        ("full", c_int32),
        ("said", c_int32),
    )


class Buffers(ctypes.Structure):
    """fetch.c's onefold_buffers: addresses, then answers."""

    _fields_ = (
        ("offset", c_void_p),
        ("size", c_void_p),
        ("value_valid", c_void_p),
        ("value_ends", c_void_p),
        ("value", c_void_p),
        ("key_valid", c_void_p),
        ("key_ends", c_void_p),
        ("key", c_void_p),
        ("timestamp_valid", c_void_p),
        ("timestamp", c_void_p),
        ("headers_valid", c_void_p),
        ("headers_ends", c_void_p),
        ("header_name_ends", c_void_p),
        ("header_name", c_void_p),
        ("header_value_valid", c_void_p),
        ("header_value_ends", c_void_p),
        ("header_value", c_void_p),
        ("value_nulls", c_int64),
        ("key_nulls", c_int64),
        ("timestamp_nulls", c_int64),
        ("headers_nulls", c_int64),
        ("header_value_nulls", c_int64),
        ("too_large", c_int64),
        ("are_objects", c_int32),
        ("is_ascii", c_int32),
    )


class Said(ctypes.Structure):
    """fetch.c's onefold_said_line."""

    _fields_ = (("kind", c_int32), ("code", c_int32), ("offset", c_int64), ("text", c_char * 512))


_FUNCTIONS: dict[str, tuple[object, tuple[object, ...]]] = {
    "source": (c_char_p, ()),
    "size": (c_size_t, (c_int,)),
    "librdkafka": (c_char_p, ()),
    "bind": (c_int, (c_char_p, c_char_p, c_size_t)),
    "open": (c_void_p, (POINTER(c_char_p), c_int, c_char_p, c_size_t)),
    "close": (None, (c_void_p,)),
    "assign": (c_int, (c_void_p, c_char_p, c_int32, c_int64)),
    "want": (None, (c_void_p, c_uint, c_int64, c_int64)),
    "said": (c_int, (c_void_p, POINTER(Said))),
    "gather": (c_int, (c_void_p, c_int64, c_int64, c_int64, c_int, POINTER(Gathered))),
    "hand_over": (None, (c_void_p, POINTER(Buffers))),
}


@cache
def find() -> ctypes.CDLL | str:
    """The helper, bound to the very librdkafka that confluent-kafka uses here; or why it can't be used."""
    path = Path(os.environ.get(LIBRARY_VARIABLE, LIBRARY))
    if not path.exists():
        return f"it was not built ({path.name} is not there): python -m onefold.sources.kafka.native build"
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, f"onefold_{name}")
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        return f"{path.name} does not load: {error}"
    if library.onefold_source().decode() != source_hash():
        return f"{path.name} was built from another fetch.c: python -m onefold.sources.kafka.native build"
    sizes = [ctypes.sizeof(kind) for kind in (Gathered, Buffers, Said)]
    require(
        sizes == [library.onefold_size(i) for i in range(len(sizes))], "a structure of fetch.c has another size here"
    )
    why = ctypes.create_string_buffer(512)
    if library.onefold_bind(str(cimpl.__file__).encode(), why, len(why)) != 0:
        return why.value.decode(errors="replace")
    return library


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
