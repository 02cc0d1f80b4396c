"""The Spark session of a command: what its JVM is started with, without starting one."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.errors import raises
from pyspark import SparkContext

from onefold.core import ConfigError
from onefold.pipeline import Spark
from onefold.spark import session
from onefold.spark.session import session_of_ones_own

# PySpark leaves the pipe to a JVM that did not start to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

# In the place of Spark's own program: notes how it was called, and ends.
SUBMIT = """\
#!/bin/sh
cd "$(dirname "$0")"
echo "$PYSPARK_PYTHON" > python
echo "$@" > arguments
while [ "$1" != --properties-file ]; do shift; done
cp -p "$2" properties
echo "Unrecognized option: --odd" >&2
exit 1
"""

# Another process that starts in the same folder meanwhile.
OTHER = """\
import sys
from pathlib import Path
from onefold.spark import session
session.launch_gateway = lambda: None
session._jvm({"spark.master": "local"}, Path(sys.argv[1]))
"""


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder where a start notes what it was called with. A session that other tests share here does not count."""
    program = tmp_path / "home" / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    program.write_text(SUBMIT)
    program.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(program.parents[1]))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    found = {"JAVA_HOME": "/java", "PYSPARK_PYTHON": sys.executable}
    monkeypatch.setattr(session, "spark_environment", lambda **_: dict(found))
    yield program.parent
    gc.collect()


def start(directory: Path, **settings: object) -> ConfigError:
    environment, runtime = dict(os.environ), Spark(**settings)  # type: ignore[arg-type]
    try:
        with (
            raises(ConfigError, "spark-not-started") as refused,
            session_of_ones_own("test", directory / "scratch", runtime.master, runtime.settings),
        ):
            pass
    finally:
        os.environ.clear()
        os.environ.update(environment)
    return refused.value


def properties(folder: Path) -> dict[str, str]:
    lines = (folder / "properties").read_text().encode().decode("unicode_escape").splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_settings_are_in_a_file_of_ones_own_and_not_among_the_arguments(
    submit: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    error = start(tmp_path, settings={"spark.hadoop.fs.s3a.secret.key": "hunter2=ü"})
    assert error.code == "spark-not-started"
    assert str(error).startswith("Spark does not start with master 'local[*]': Unrecognized option: --odd. Correct")
    assert capfd.readouterr().err == "", "the error has the reason"
    arguments = (submit / "arguments").read_text()
    assert "hunter2" not in arguments and "--load-spark-defaults --properties-file" in arguments
    assert properties(submit)["spark.hadoop.fs.s3a.secret.key"] == "hunter2=ü"
    assert (submit / "properties").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "scratch" / "spark.properties").exists(), "it is removed once it was read"


def test_a_local_master_stays_on_this_machine_and_runs_this_python(submit: Path, tmp_path: Path) -> None:
    start(tmp_path, master="local[2]")
    assert properties(submit)["spark.driver.host"] == "127.0.0.1" and properties(submit)["spark.authenticate"] == "true"
    assert (submit / "python").read_text().strip() == sys.executable


def test_a_clusters_workers_reach_the_driver_and_run_the_python_that_is_named(
    submit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(tmp_path, master="spark://host:7077", settings={"spark.pyspark.python": "/opt/named"})
    assert not {"spark.driver.host", "spark.driver.bindAddress", "spark.authenticate"} & {*properties(submit)}
    assert (submit / "python").read_text().strip() == "/opt/named"
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/other")
    for master in ("spark://host:7077", "local[2]"):
        start(tmp_path, master=master)
        assert (submit / "python").read_text().strip() == "/opt/other"
    monkeypatch.delenv("PYSPARK_PYTHON")
    start(tmp_path, master="yarn")
    assert (submit / "python").read_text().strip() == "", "the first python3 on PATH is Spark's own default"


@pytest.mark.parametrize("key", ["master", "spark.master", "hive.x"])
def test_settings_that_are_not_sparks_are_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="settings"):
        Spark(settings={key: "local[2]"})


@pytest.mark.usefixtures("submit")
def test_for_debugging_the_log_is_shown_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ONEFOLD_DEBUG", "1")
    start(tmp_path)
    assert capfd.readouterr().err == "Unrecognized option: --odd\n"


EXITED = "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number."


@pytest.mark.parametrize(
    ("said", "written", "reason"),
    [
        (
            EXITED,
            'WARNING: Using incubator modules: jdk.incubator.vector\nException in thread "main" org.apache.spark.'
            "SparkException: Master must either be yarn or start with spark, k8s, or local\n\tat org",
            "Master must either be yarn or start with spark, k8s, or local",
        ),
        (EXITED, "Invalid maximum heap size: -Xmx2x\nError: Could not create", "Invalid maximum heap size: -Xmx2x"),
        (
            EXITED,
            "Error occurred during initialization of VM\nCould not reserve enough space for 943718400000KB object heap",
            "Could not reserve enough space for 943718400000KB object heap",
        ),
        (EXITED, "", EXITED.rstrip(".")),
        (
            "org.apache.spark.SparkException: Could not parse Master URL: 'local[x]'\n\tat org",
            "21:57:31 ERROR SparkContext: Error initializing SparkContext.",
            "Could not parse Master URL: 'local[x]'",
        ),
        (
            "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\nThis",
            "21:58:38 ERROR Backend: Application has been killed. Reason: All masters are unresponsive! Giving up.",
            "All masters are unresponsive! Giving up",
        ),
    ],
)
def test_the_reason_is_the_line_of_spark_that_says_it(said: str, written: str, reason: str, tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    log.write_text(written)
    assert session._reason(said, log) == reason


def test_processes_that_start_in_one_folder_at_the_same_moment_leave_each_others_settings_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = [sys.executable, "-c", OTHER, str(tmp_path)]
    found: list[Path] = []

    def launch() -> None:
        subprocess.run(other, check=True, timeout=60)
        found.extend(tmp_path.iterdir())

    monkeypatch.setattr(session, "launch_gateway", launch)
    session._jvm({"spark.master": "local"}, tmp_path)
    assert len(found) == 1, "this process's settings are there until its JVM has answered, and no others"
    assert list(tmp_path.iterdir()) == []
