"""Names of Python objects in files and on command lines: `module:name`, or `path/to/file.py:name`."""

from __future__ import annotations

import grp
import hashlib
import importlib
import importlib.util
import pwd
import stat
import sys
from pathlib import Path
from types import ModuleType

from onefold.core import ConfigError, OnefoldError
from onefold.core.values.names import near

_FILES: list[ModuleType] = []  # those that were loaded


def imported(reference: str, directory: Path | None = None) -> object:
    """The object of that name. Paths are relative to `directory`, or else to the working directory.

    Raises ConfigError where there is no such module, file or name; an error of the module's own stays what it is.
    """
    place, _, name = reference.rpartition(":")
    if not place or not name:
        raise ConfigError(
            "reference-invalid",
            f"{reference!r} names no object: write module:name, or file.py:name. A file that is a pipeline is called"
            " NAME.toml",
        )
    if place.endswith(".toml"):
        raise ConfigError("reference-invalid", f"{reference!r}: a TOML file is one pipeline. Write {place} alone")
    module = _from_file((directory or Path()) / place) if place.endswith(".py") else _from_path(place, reference)
    found: object = module
    for part in name.split("."):
        if not hasattr(found, part):
            hint = near(part, [word for word in vars(module) if not word.startswith("_")])
            raise ConfigError("reference-missing", f"{place} has no {name!r}{hint}")
        found = getattr(found, part)
    return found


def have_files_travel() -> None:
    """From here on what functions of files need goes with them to Spark's workers, which need not have the files."""
    from pyspark import cloudpickle  # which only Spark needs

    for module in _FILES:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # it has no types


def check_nobody_else_writes(path: Path) -> None:
    """Raise ConfigError for a file that others than its owner and root may write: who does could run code as this
    process. A group of the owner alone, which many systems give each user, is no other."""
    try:
        found = path.stat()
    except OSError:
        return  # which reading it says better
    is_groups = found.st_mode & stat.S_IWGRP and not _is_of_one(found.st_uid, found.st_gid)
    if found.st_mode & stat.S_IWOTH or is_groups:
        who = "any user of this machine" if found.st_mode & stat.S_IWOTH else "a group"
        raise ConfigError(
            "file-writable-by-others",
            f"the file {path} may be written by {who}, who could so have any code run as this process: chmod go-w"
            f" {path}",
        )


def _is_of_one(user: int, group: int) -> bool:
    """Whether the group is the user's own, with nobody else in it."""
    try:
        owner, of = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:
        return False
    return owner.pw_gid == group and of.gr_name == owner.pw_name and {*of.gr_mem} <= {owner.pw_name}


def _from_path(module: str, reference: str) -> ModuleType:
    try:
        parts = module.split(".")
        for number in range(1, len(parts) + 1):  # a package is run before what it has
            name = ".".join(parts[:number])
            found = None if name in sys.modules else importlib.util.find_spec(name)
            if found is not None and found.has_location and found.origin is not None:
                check_nobody_else_writes(Path(found.origin))
            imported_module = importlib.import_module(name)
        return imported_module
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{module}.".startswith(f"{error.name}."):
            raise _broken(module, error) from error
        raise ConfigError(
            "reference-missing",
            f"{reference!r} names the module {module}, which is neither installed nor on PYTHONPATH. A file beside is"
            f" named by its path: {module.rpartition('.')[2]}.py:{reference.rpartition(':')[2]}",
        ) from None
    except OnefoldError:
        raise
    except Exception as error:
        raise _broken(module, error) from error


def _from_file(path: Path) -> ModuleType:
    """Each file is loaded once in a process."""
    path = path.resolve()
    name = f"onefold_file_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise ConfigError("file-unreadable", f"there is no file {path}")
    check_nobody_else_writes(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, "a file that ends with .py has a loader"
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        if isinstance(error, OnefoldError):
            raise
        raise _broken(str(path), error, _advice(path.parent, error)) from error
    _FILES.append(module)
    return module


def _advice(folder: Path, error: Exception) -> str:
    """What to do where the missing module lies beside the file, and `python FILE` would find it."""
    missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if not missing or not ((folder / f"{missing}.py").is_file() or (folder / missing).is_dir()):
        return ""
    return f". That module lies beside the file, and is found with PYTHONPATH={folder}"


def _broken(place: str, error: Exception, advice: str = "") -> ConfigError:
    return ConfigError("reference-broken", f"importing {place} failed: {type(error).__name__}: {error}{advice}")
