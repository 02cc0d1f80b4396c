"""The compiled helper, found at run time, or the reason why it is not used."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint, c_void_p
from functools import cache
from pathlib import Path

from confluent_kafka import cimpl

from onefold.core.checks import require
from onefold.sources.kafka.native.building import LIBRARY, source_hash

__all__ = ["LIBRARY_VARIABLE", "SAID_ERROR", "SAID_EVENT", "Buffers", "Gathered", "Said", "find"]

LIBRARY_VARIABLE = "ONEFOLD_FETCH_LIBRARY"  # another library than the one in this package: for the sanitizers' tests

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
