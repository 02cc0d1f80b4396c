"""What a pipeline runs on, as it is here; and which rows its sinks get there."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version

import pyarrow as pa

from onefold.clients.files import FileSystem, FileSystems, HadoopFiles, LocalFiles, check_writable, is_local
from onefold.core import OnefoldError, Retriable, SinkKind
from onefold.core.extras import naming_extras
from onefold.core.findings import THIS_MACHINE, Finding, Level, tried
from onefold.core.invariants import NoDuplicate
from onefold.flow.explaining import told_of_alignment
from onefold.flow.processing.mechanisms import promised, refuse_write_through
from onefold.operate.doctor.examination import asked, exposed
from onefold.pipeline import Engine, Pipeline, Spark


def examine_runtime(pipeline: Pipeline) -> tuple[list[Finding], Mapping[str, pa.Schema] | None]:
    """Starts Spark as the pipeline does, where that runs it. The schemas are the rows' of each sink, None where only a
    start finds them."""
    found: list[Finding] = []
    try:
        if isinstance(pipeline.runtime, Engine):
            found += asked(lambda: _engine(pipeline))
        else:
            _spark(pipeline, pipeline.runtime, found)
        if pipeline.flow.is_settled:
            pipeline.check()
            return found, pipeline.graph.schemas()
        says = "the source's schema is found by the first start, and with it the sinks' rows"
        found.append(Finding(Level.UNCHECKED, says))
    except OnefoldError as error:
        found.append(Finding.of(error))
    return found, None


def _spark(pipeline: Pipeline, runtime: Spark, found: list[Finding]) -> None:
    from onefold.spark.flows.spark_operator import checked_operator
    from onefold.spark.runtime.access import exposure_of

    with runtime.session_for("onefold doctor", "doctor") as spark:
        java = spark.sparkContext._jvm.System.getProperty("java.version")  # type: ignore[union-attr]  # PySpark: "JVMView | None"
        found.append(_fine(f"Spark {spark.version} on {runtime.master}, Java {java}"))
        refused = Level.PROBLEM if pipeline.require_tls else Level.CAUTION
        found += exposed(exposure_of(spark), refused)
        found += asked(lambda: _checkpoint(pipeline.checkpoint, lambda: HadoopFiles(spark)))
        if pipeline.flow.is_settled:
            checked_operator(spark, pipeline.graph)


def _engine(pipeline: Pipeline) -> Iterator[Finding]:
    runtime = pipeline.runtime
    assert isinstance(runtime, Engine)
    with naming_extras("engine"):
        import numpy  # noqa: F401  # which its workers need
    if runtime.state == "rocksdb":
        with naming_extras("state"):
            from onefold.engine.state.rocks import RocksBackend  # noqa: F401
    workers = f"{runtime.workers} worker{'' if runtime.workers == 1 else 's'}"
    state = f", state in {runtime.state}" if pipeline.flow.is_settled and pipeline.keeps_state else ""
    yield _fine(f"the engine, {workers}{state}")
    shows_early = []
    for sink in pipeline.everyone:
        with suppress(OnefoldError):  # which is found where the sink itself is looked at
            shows_early += [sink.name] if sink.guarantee().kind is SinkKind.WRITE_THROUGH else []
    yield from tried(lambda: refuse_write_through(runtime.alignment, shows_early))
    if pipeline.flow.is_settled:
        says, may_double = told_of_alignment(pipeline.graph, runtime.alignment, runtime.workers)
        if says:
            yield Finding(Level.PROBLEM, says, (NoDuplicate.name,)) if may_double else Finding(Level.FINE, says)
    if says := promised(runtime.mechanism):
        yield Finding(Level.CAUTION, f"mechanism {runtime.mechanism}: {says}")
    yield from _checkpoint(pipeline.checkpoint, lambda: FileSystems().of(pipeline.checkpoint))


def _fine(runs: str) -> Finding:
    return Finding(Level.FINE, f"{runs}, Python {platform.python_version()}, onefold {version('onefold')}")


def _checkpoint(root: str, elsewhere: Callable[[], FileSystem]) -> Iterator[Finding]:
    check_writable(root)
    files = LocalFiles() if is_local(root) else elsewhere()  # as the pipeline reaches it
    try:
        is_there = files.exists(root)
    except Retriable as error:
        raise Retriable("checkpoint-unreadable", error.message) from error
    if is_there:
        yield Finding(Level.FINE, f"the checkpoint {root} is there")
    else:
        command, where = (
            ("mkdir", THIS_MACHINE) if is_local(root) else ("hadoop fs -mkdir", "the checkpoint's filesystem")
        )
        says = f"the checkpoint {root} is made by the first start"
        yield Finding.making(says, where, [f"{command} -p {shlex.quote(root)}"])
