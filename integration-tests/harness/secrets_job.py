"""A job that was given secrets in every place that takes one, and writes down all that it and Spark say meanwhile.

    python integration-tests/harness/secrets_job.py given.json

What it says goes to `directory`/said; its checkpoint, Spark's event log and scratch files are beside that.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from pyspark.sql import DataFrame

from onefold.flow import Flow
from onefold.pipeline import Pipeline, Spark
from onefold.sinks import KafkaSink, PostgresSink
from onefold.sources import KafkaSource, PostgresSource
from onefold.spark import read_postgres
from onefold.spark.session import spark_session
from onefold.store.checkpoint_store import CheckpointStore

PAGES = ("environment", "sql?details=true&planDescription=true", "jobs", "stages?details=true", "allexecutors")


def main(given: dict[str, Any]) -> None:
    directory, said = Path(given["directory"]), []
    (directory / "events").mkdir()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    logging.getLogger("onefold").setLevel(logging.DEBUG)
    events = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file:{directory}/events"}
    pages = {"spark.ui.enabled": "true", "spark.ui.port": "0"}
    spark = spark_session("secrets", directory, "local[2]", **events, **pages)
    (directory / "said").mkdir()

    def say(*texts: object) -> None:
        said.extend(map(str, texts))

    def failing(make: Callable[[], object]) -> None:
        try:
            make()
        except Exception as error:
            while error is not None:  # as a traceback shows it
                say(type(error), error, repr(error))
                error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)  # type: ignore[assignment]
        else:
            raise AssertionError("it was to fail")

    def source(settings: dict[str, str]) -> KafkaSource:
        return KafkaSource(
            given["topic"],
            bootstrap_servers=given["kafka"],
            client_config=settings,
            timeout_s=2,
            format="avro",
            avro_schema=given["avro"],
            schema_registry=given["registry"],
            on_error="dead_letter",
        )

    def pipeline(
        name: str,
        url: str = given["url"],
        reading: dict[str, str] = given["settings"],
        change: Callable[[Any], Any] = lambda rows: rows,
    ) -> Pipeline:
        sinks = [
            PostgresSink(url, "rows"),
            KafkaSink(given["into"], bootstrap_servers=given["kafka"], client_config=given["settings"], timeout_s=2),
        ]
        letters = PostgresSink(given["url"], "letters", name="letters")
        flow = Flow(name)
        rows = change(flow.source(source(reading), uid="in", dead_letters=letters))
        for sink in sinks:
            rows.sink(sink)
        runtime = Spark(session=spark, available_now=True)
        return Pipeline(flow, runtime=runtime, checkpoint=f"{directory}/checkpoint-{name}", patience_s=1)

    def shown(df: DataFrame) -> DataFrame:
        say(df._jdf.queryExecution().toString())
        return df

    ways: dict[str, Callable[[Any], Any]] = {
        "plain": lambda rows: rows,
        "spark": lambda rows: rows.spark_dataframe(shown, rows.schema),
    }
    for name, change in ways.items():
        given_to = pipeline(name, change=change)
        running = given_to.writer()
        query = given_to.start(spark, running)
        running.await_termination(query, 120)
        say(given_to, given_to.flow, given_to.flow.explain())
        say(query.lastProgress, query._jsq.toString(), query._jsq.explainInternal(True), query.recentProgress)
        say(running, running.facts(), running.history(), running.guarantees())
        running.close()
    read = read_postgres(spark, PostgresSource(given["url"], "rows", split_by="id", splits=2))
    say(read.collect(), read._jdf.queryExecution().toString())
    options = {"url": given["url"], "table": "copies", "pipeline": "copies", "run": "1", "store": given["url"]}
    read.write.format("onefold_postgres").options(**options).mode("append").save()

    wrong = given["settings"] | {"sasl.password": given["wrong"]}
    failing(pipeline("w1", reading=wrong).run)
    failing(pipeline("w3", given["dead"]).recover)
    failing(lambda: CheckpointStore(given["dead"]).id())
    failing(lambda: CheckpointStore(given["dead"].replace("postgresql", "mariadb")).id())
    failing(lambda: read_postgres(spark, PostgresSource(given["dead"], "rows")))
    failing(lambda: spark.read.format("onefold_postgres").options(url=given["dead"], table="rows").load().collect())
    failing(lambda: read.write.format("onefold_postgres").options(**options | {"url": given["dead"]}).save())
    batch = source(given["settings"]).options() | {"onError": "skip"}
    found = spark.read.format("onefold_kafka").options(**batch).load()
    say(found.collect(), found._jdf.queryExecution().toString(), found._jdf.queryExecution().simpleString())
    refused = spark.read.format("onefold_kafka").options(**batch | {"kafka.sasl.password": given["wrong"]})
    failing(lambda: refused.load().collect())

    base = f"{spark.sparkContext.uiWebUrl}"
    application = f"{base}/api/v1/applications/{spark.sparkContext.applicationId}"
    for page in PAGES:
        say(urlopen(f"{application}/{page}").read().decode())
    for execution in json.loads(urlopen(f"{application}/sql?length=1000").read()):
        say(urlopen(f"{base}/SQL/execution/?id={execution['id']}").read().decode())
    for page in ("StreamingQuery/", "environment/", "SQL/", "jobs/", "executors/"):
        say(urlopen(f"{base}/{page}").read().decode())
    (directory / "said" / "all").write_text("\n".join(said))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
