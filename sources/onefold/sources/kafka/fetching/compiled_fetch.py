"""fetch.c's functions, bound to confluent-kafka's librdkafka, or the reason why they are not used."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint, c_void_p
from functools import cache

from confluent_kafka import cimpl

from onefold.clients.kafka.client_roles import CONSUMER
from onefold.core.checks import require
from onefold.sources.native.library import effective, load, wanted

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
    """The library, bound to the very librdkafka that confluent-kafka uses here; or why it can't be used."""
    library = load()
    if isinstance(library, str):
        return library
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, f"onefold_{name}")
        function.restype, function.argtypes = result, arguments
    sizes = [ctypes.sizeof(kind) for kind in (Gathered, Buffers, Said)]
    require(
        sizes == [library.onefold_size(i) for i in range(len(sizes))], "a structure of fetch.c has another size here"
    )
    why = ctypes.create_string_buffer(512)
    if library.onefold_bind(str(cimpl.__file__).encode(), why, len(why)) != 0:
        return why.value.decode(errors="replace")
    return library


_told: set[str] = set()


def helper(choice: str) -> ctypes.CDLL | None:
    """What fetches, if it is to be used. Raises `ConfigError` if it is required and can't be."""
    found = wanted(choice, find)
    if effective(choice) != "off" and (text := described(choice)) not in _told:
        _told.add(text)
        CONSUMER.logger.info("%s", text)
    return found


def described(choice: str = "auto") -> str:
    """How this process fetches records, in words."""
    if effective(choice) == "off":
        return "Kafka records are fetched one by one: the compiled fetch is turned off"
    found = find()
    if isinstance(found, str):
        return f"Kafka records are fetched one by one: the compiled fetch is not used, {found}"
    return f"Kafka records are fetched in compiled batches (librdkafka {found.onefold_librdkafka().decode()})"
