"""How fetch.c and json.c become one shared library: at build time by hatch_build.py, or later by
`python -m onefold.sources.compiled build`.

Needs nothing but the standard library and a C compiler: no headers of Python, Arrow or librdkafka.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

_HERE = Path(__file__).parent
_COMPILED = (_HERE / "fetch.c", _HERE / "json.c", _HERE / "yyjson.c")
_SOURCES = (*_COMPILED, _HERE / "rdkafka.h", _HERE / "yyjson.h")
LIBRARY = _HERE / "_native.so"  # dlopen asks for no particular ending
_FLAGS = ("-std=c11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-fstack-protector-strong", "-Wall", "-Wextra")
# Of yyjson (vendored as it is: 0.12.0) only its reader of whole texts, by RFC 8259, with no symbol of its own outside.
_YYJSON = ("WRITER", "UTILS", "INCR_READER", "NON_STANDARD")
DEFINED = ("-Dyyjson_api=", *(f"-DYYJSON_DISABLE_{part}=1" for part in _YYJSON))
_LINKED = ("-Wl,-z,relro,-z,now",) if sys.platform == "linux" else ()
_COMPILE_S_MAX = 300


class NotBuilt(Exception):
    """There is no compiler, or it failed; the text says which."""


def source_hash() -> str:
    """What the library must have been compiled from."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES)).hexdigest()[:16]


def compiler() -> list[str] | None:
    """The command of a C compiler: `$CC`, or the first of cc, gcc, clang."""
    if named := os.environ.get("CC"):
        command = shlex.split(named)
        return command if shutil.which(command[0]) else None
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    return [found] if found else None


def build(library: Path = LIBRARY, flags: Sequence[str] = ()) -> Path:
    """Compile, and put the library in its place at once. Raises `NotBuilt`; what was there stays then."""
    command = compiler()
    if command is None:
        raise NotBuilt("no C compiler was found (cc, gcc, clang, or what CC names)")
    try:
        with tempfile.TemporaryDirectory(prefix=".build-", dir=library.parent) as part:
            made = Path(part) / library.name
            identity = f'-DONEFOLD_SOURCE="{source_hash()}"'
            command += [*_FLAGS, *DEFINED, *_LINKED, *flags, identity, "-o", str(made)]
            command += [*map(str, _COMPILED), "-lpthread", "-ldl"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_S_MAX, check=False)
            if done.returncode != 0:
                raise NotBuilt(f"{shlex.join(command)} failed: {(done.stderr or done.stdout).strip()}")
            made.replace(library)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotBuilt(f"compiling {library.name} failed: {error}") from error
    return library
