"""onefold's formats for a Spark session."""

from __future__ import annotations

import logging
from importlib import import_module
from importlib.util import find_spec

from pyspark.sql import SparkSession

from onefold.core.extras import extra_of
from onefold.spark.runtime.workers import prepare_workers

__all__ = ["register"]

log = logging.getLogger("onefold")

# Each format with its server's client, which need not be installed.
_FORMATS = {
    "confluent_kafka": ("onefold.spark.formats.kafka_source", "OnefoldKafkaDataSource"),
    "thriftpy2": ("onefold.spark.formats.hbase_source", "OnefoldHBaseDataSource"),
    "psycopg": ("onefold.spark.formats.postgres_format", "OnefoldPostgresDataSource"),
}


def register(spark: SparkSession) -> None:
    """Register `onefold_kafka`, `onefold_hbase` and `onefold_postgres` with this session. It may be repeated."""
    prepare_workers(spark)
    for client, (module, name) in _FORMATS.items():
        if find_spec(client) is not None:
            spark.dataSource.register(getattr(import_module(module), name))
        else:
            log.info("%s needs %s: install onefold[%s]", name, client, extra_of(client))
