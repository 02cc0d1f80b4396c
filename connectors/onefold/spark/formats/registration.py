"""onefold's formats for a Spark session, and errors in the words of their options."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from onefold.clients.option_texts import with_names_of_spark
from onefold.core import ConfigError
from onefold.core.errors import OnefoldError
from onefold.core.extras import naming_extras
from onefold.spark.runtime.access import close_callbacks
from onefold.spark.runtime.workers import prepare_workers

# Each format with its server's client, which need not be installed.
_FORMATS = {
    "onefold_kafka": ("confluent_kafka", "onefold.spark.formats.kafka_source", "OnefoldKafkaDataSource"),
    "onefold_hbase": ("thriftpy2", "onefold.spark.formats.hbase_source", "OnefoldHBaseDataSource"),
    "onefold_postgres": ("psycopg", "onefold.spark.formats.postgres_format", "OnefoldPostgresDataSource"),
    "onefold_sql": ("sqlalchemy", "onefold.spark.formats.sql_format", "OnefoldSqlDataSource"),
}

# What PythonStreamingSourceRunner.init puts into the environment of a format, a `java.util.HashMap` that all streams of
# the format share, and their tasks get a copy of. Two that add a name at once leave it with a wrong size, and no task
# can read it from then on (OptionalDataException). To replace a name that is there already breaks nothing.
_PUT_BY_STREAMS = ("SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_PYTHON_RUNTIME")

_registering = threading.Lock()


def register(spark: SparkSession) -> None:
    """Register `onefold_kafka`, `onefold_hbase`, `onefold_postgres` and `onefold_sql` with this session, and close the
    port at which Spark calls back into this process to other users of the machine (docs/security.md). It may be
    repeated. A format whose packages are not installed says so when it is used."""
    prepare_workers(spark)
    with suppress(ConfigError):  # which a pipeline raises
        close_callbacks(spark)
    for name, (client, module, of) in _FORMATS.items():
        is_there = find_spec(client) is not None
        register_format(spark, getattr(import_module(module), of) if is_there else _missing(name, client))


def _missing(name: str, client: str) -> type[DataSource]:
    """A format whose every use raises ConfigError: it needs a package that is not installed."""

    def refuse(*_: object, **__: object) -> None:
        _import(client)

    return type(name, (DataSource,), {"name": classmethod(lambda _: name), "__init__": refuse})


def _import(client: str) -> None:
    """Of this module, not of the class: a process of Spark's that unpickles it then seals its errors too."""
    with naming_extras():
        import_module(client)


def register_format(spark: SparkSession, format_: type[DataSource]) -> None:
    """Spark warns of a format that is registered again; and whether there is one, it looks in the active session."""
    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        spark.dataSource.register(format_)
        return
    formats = session.sessionState().dataSourceManager()
    with _registering:
        if formats.dataSourceExists(format_.name()):
            return
        sessions = spark._jvm.org.apache.spark.sql.SparkSession  # type: ignore[union-attr]  # PySpark: "JVMView | None"
        active = sessions.getActiveSession()
        sessions.setActiveSession(session)
        try:
            spark.dataSource.register(format_)
        finally:
            if active.isDefined():
                sessions.setActiveSession(active.get())
            else:
                sessions.clearActiveSession()
        shared = formats.lookupDataSource(format_.name()).dataSourceCls().envVars()
        for name in _PUT_BY_STREAMS:  # before any stream has begun
            shared.put(name, "")


@contextmanager
def in_words_of_spark(*models: type) -> Iterator[None]:
    """Gives errors of the block Spark's names for the fields of `models`."""
    try:
        yield
    except OnefoldError as error:
        raise error.reworded(with_names_of_spark(error.message, *models)) from error.__cause__
