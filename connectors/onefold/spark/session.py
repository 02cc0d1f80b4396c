"""A Spark session for commands that bring their own: quiet, on this machine unless told otherwise; and its folders.

A process that is killed leaves its temporary folders behind, and the next one removes them. Each has a locked file as
long as its process lives. The kernel lets go of the lock with the process, however that ends; a process's number says
less, since containers that share a folder each count their own.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from pathlib import Path

from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from onefold.core import ConfigError, OnefoldError
from onefold.local import spark_environment
from onefold.local.secrets import write_secret
from onefold.spark.errors.failures import disk_full, is_disk_full

_QUIET = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{short}
"""
_RETRIES = """\
logger.retries.name = org.apache.spark.scheduler
logger.retries.level = warn
"""
_ON_THIS_MACHINE = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
# Masters with which nobody else is there who would need to know the secret: Spark makes one for itself.
_MAKES_SECRET = re.compile(r"local(\[([0-9]+|\*)( *, *[0-9]+)?\])?|local-cluster\[.*\]")
_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_LOG = "spark.log"
_NO_REASON = re.compile(r"NOTE:|WARNING:|Picked up |Error occurred during initialization of VM|\s|$")
_GIVEN_UP = re.compile(r" Reason: (.+)")
_EXCEPTION = re.compile(r"^(?:Exception in thread \"[^\"]*\" )?(?:\w+\.)+\w+(?:Exception|Error): ")
LOCK = "onefold.lock"


def spark_session(
    name: str, directory: Path, master: str = "local[*]", *, show_retries: bool = False, **settings: str
) -> SparkSession:
    """A session that finds a Java, or brings one. Its scratch files and log settings go into `directory`.

    `show_retries` logs lost tasks, stages and executors too. Raises ConfigError where Spark does not start, and
    OutOfResources where there is no room for its files.
    """
    is_local = master.startswith("local")
    makes_secret = _MAKES_SECRET.fullmatch(master) is not None  # else Spark asks for one before it reads the master
    os.environ.update(_environment(is_local, settings))
    scratch = directory / "scratch"
    log_settings = directory / "log4j2.properties"
    wanted = {
        "spark.app.name": name,
        "spark.master": master,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **(_ON_THIS_MACHINE if is_local else {}),
        **({"spark.authenticate": "true"} if makes_secret else {}),
        "spark.driver.memory": "2g",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        # A JVM that is killed leaves its temporary files: here, not in /tmp.
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile=file:{log_settings} -Djava.io.tmpdir={scratch} -XX:-UsePerfData"
            # One that goes on without memory is in no clear state: it may hang, or have lost a thread.
            " -XX:+ExitOnOutOfMemoryError"
        ),
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        **settings,
    }
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        log_settings.write_text(_QUIET + (_RETRIES if show_retries else ""))
        with _own_interrupts():
            if SparkContext._gateway is None:
                conf = SparkConf().setAll(list(wanted.items()))
                SparkContext(conf=conf, gateway=_jvm(wanted, directory))
            return SparkSession.builder.config(map=dict(wanted)).getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        said = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
        if is_disk_full(said):
            raise disk_full(said.strip().partition("\n")[0]) from error
        raise ConfigError(
            "spark-not-started",
            f"Spark does not start with master {master!r}: {_reason(said, directory / _LOG)}. Correct `master`, the"
            " other settings of Spark, or its Java",
        ) from error


def _reason(said: str, log: Path) -> str:
    """The reason in one line: the error's, or what the JVM wrote where it ended without an answer or gave up."""
    written = log.read_text(errors="replace") if log.exists() else ""
    lines = said.strip().splitlines()
    if "JAVA_GATEWAY_EXITED" in said:
        lines = [line for line in written.splitlines() if not _NO_REASON.match(line)] or lines
    elif "stopped SparkContext" in said:
        lines = _GIVEN_UP.findall(written) or lines
    return _EXCEPTION.sub("", lines[0]).rstrip(".") if lines else "it does not say why"


def _environment(is_local: bool, settings: Mapping[str, str]) -> dict[str, str]:
    """What Spark takes from the environment. The workers' Python is this one on this machine, unless it is named."""
    found = spark_environment(is_local=is_local)
    if "spark.pyspark.python" in settings:
        return {**found, "PYSPARK_PYTHON": settings["spark.pyspark.python"]}
    if "PYSPARK_PYTHON" in os.environ or not is_local:
        del found["PYSPARK_PYTHON"]
    return found


def _jvm(settings: Mapping[str, str], directory: Path) -> JavaGateway:
    """A JVM that was started with these settings. They are in a file meanwhile, as `ps` shows what arguments say.

    The file is this process's own: others may start in the same folder at the same moment.
    """
    file = directory / f"spark-{os.getpid()}.properties"
    text = "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items())
    before = os.environ.get(_ARGUMENTS)
    write_secret(file, text)
    # Spark would leave its own spark-defaults.conf out.
    own = f"--load-spark-defaults --properties-file {shlex.quote(str(file))}"
    os.environ[_ARGUMENTS] = f"{own} {before or 'pyspark-shell'}"
    try:
        return launch_gateway()  # type: ignore[no-untyped-call]  # PySpark has no types here
    finally:
        file.unlink()
        os.environ.pop(_ARGUMENTS)
        os.environ.update({} if before is None else {_ARGUMENTS: before})


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """A session that is made in the block installs no handler of SIGINT: Spark's asks the JVM in the middle of another
    call, and would take the place of a command's own."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _escaped(text: str) -> str:
    """A text as java.util.Properties reads it."""
    units = text.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


@contextmanager
def _standard_error_to(log: Path) -> Iterator[None]:
    """What a JVM that is started in here says goes to the file, as long as it lives. Where that fails, it is shown here
    as well: of an error of onefold's, which has the reason, only with ONEFOLD_DEBUG."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    except BaseException as error:
        if not isinstance(error, OnefoldError) or os.environ.get("ONEFOLD_DEBUG"):
            os.write(kept, log.read_bytes())
        raise
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def session_of_ones_own(
    name: str, directory: Path, master: str = "local[*]", settings: Mapping[str, str] = {}
) -> Iterator[SparkSession]:
    """A session for one piece of work, stopped after it; where the process has one already, that one, which stays.

    Its JVM writes to `directory`/spark.log: what Spark says of its own start is noise to whoever runs a command.
    """
    if running := SparkSession.getActiveSession():
        yield running
        return
    with _standard_error_to(directory / _LOG):
        spark = spark_session(name, directory, master, show_retries=False, **settings)
    try:
        yield spark
    finally:
        with suppress(Py4JError, OSError):  # its JVM is gone, and so is the session
            spark.stop()


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A folder that is removed at the end, and before it those of this prefix and user whose process was killed.

    Raises OutOfResources where there is no room for one.
    """
    with ExitStack() as stack:
        try:
            _remove_abandoned(Path(tempfile.gettempdir()), prefix)
            made = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(made))
            stack.enter_context(_locked(folder))
        except OSError as error:  # that no folder is usable is a FileNotFoundError
            raise disk_full(str(error)) from error
        yield folder


def _locked(folder: Path) -> FileIO:
    """The folder's lock. It has its name only when it is held: nobody finds one that is not."""
    new = folder / f"{LOCK}.new"
    file = FileIO(new, "x")
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        new.rename(folder / LOCK)
    except BaseException:
        file.close()
        raise
    return file


def _remove_abandoned(parent: Path, prefix: str) -> None:
    """What cannot be removed now is left to the next command."""
    for folder in parent.glob(f"{prefix}*"):
        with suppress(OSError):
            if folder.is_symlink() or folder.lstat().st_uid != os.geteuid():
                continue  # in a folder that all share, others may give a link any name
            with FileIO(folder / LOCK, "r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for path in folder.iterdir():
                    if path.is_dir() and not path.is_symlink():
                        shutil.rmtree(path)
                    elif path.name != LOCK:
                        path.unlink()
                shutil.rmtree(folder)  # the lock goes last: without it the rest would be taken for another's
