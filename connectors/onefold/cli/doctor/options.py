"""`onefold doctor`: the options, and the pipeline that they describe."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console

from onefold.cli import hbase_options as hbase_is
from onefold.cli import kafka_options as kafka_is
from onefold.cli.option_values import comma_separated, resolved, settings_of
from onefold.core import ConfigError, Sink

__all__ = ["doctor"]


class Delivery(StrEnum):
    AUTO = "auto"
    TWO_PHASE = "two_phase"
    STAGED = "staged"


class RowMode(StrEnum):
    APPEND = "append"
    UPSERT = "upsert"


class TableMode(StrEnum):
    ROW_KEY = "row_key"
    ROLLING = "rolling"
    INCREMENTAL = "incremental"


def doctor(
    pipeline: Annotated[str, typer.Option(help="The pipeline's name.")],
    postgres: Annotated[str | None, typer.Option(help="URL of a Postgres sink's database.", callback=resolved)] = None,
    table: Annotated[str | None, typer.Option(help="The Postgres sink's table.")] = None,
    delivery: Annotated[Delivery, typer.Option(help="The Postgres sink's delivery.")] = Delivery.AUTO,
    mode: Annotated[
        RowMode, typer.Option(help="The Postgres sink's mode; upsert needs --key, --order.")
    ] = RowMode.APPEND,
    key: Annotated[str, typer.Option(help="upsert: the columns that name a row, separated by commas.")] = "",
    order: Annotated[str, typer.Option(help="upsert: the columns that say which version is newer.")] = "",
    delete_when_true: Annotated[str | None, typer.Option(help="upsert: the column that marks deletions.")] = None,
    delete_when_null: Annotated[str | None, typer.Option(help="upsert: the column that deletions lack.")] = None,
    role: Annotated[str | None, typer.Option(help="The Postgres sink's role.")] = None,
    sink: Annotated[str | None, typer.Option(help="The Postgres sink's name, if it isn't the table's.")] = None,
    ledger: Annotated[str, typer.Option(help="The schema of the Postgres sink's ledger.")] = "onefold_sinks",
    into: kafka_is.Into = None,
    into_servers: kafka_is.Servers = None,
    into_delivery: kafka_is.Delivery = None,
    into_name: kafka_is.Name = None,
    id: kafka_is.Id = "",
    into_ledger: kafka_is.Ledger = None,
    transactional_id_prefix: kafka_is.Prefix = None,
    transaction_timeout_s: Annotated[float | None, typer.Option(help="As the Kafka sink has it.")] = None,
    outage_max_s: Annotated[float | None, typer.Option(help="As the Kafka sink has it.")] = None,
    hbase: hbase_is.Servers = None,
    hbase_table: Annotated[str | None, typer.Option(help="The HBase sink's table.")] = None,
    hbase_mode: Annotated[TableMode | None, typer.Option(help="The HBase sink's mode, if it isn't row_key.")] = None,
    hbase_order: Annotated[str, typer.Option(help="row_key, rolling: the HBase sink's order.")] = "",
    hbase_name: Annotated[str | None, typer.Option(help="The HBase sink's name, if it isn't the table's.")] = None,
    row_key: hbase_is.RowKeyColumns = "",
    salt: hbase_is.Salt = None,
    hash: hbase_is.Hash = None,
    columns: hbase_is.Columns = "",
    family: hbase_is.Family = None,
    hbase_delete_when_true: Annotated[
        str | None, typer.Option(help="row_key: the column that marks deletions.")
    ] = None,
    delete_mode: hbase_is.DeleteMode = None,
    tombstone_column: hbase_is.TombstoneColumn = None,
    merge: hbase_is.Merge = None,
    sequence: hbase_is.Sequence = None,
    dense_sequence: hbase_is.DenseSequence = False,
    hbase_ledger: hbase_is.Ledger = None,
    transport: hbase_is.Transport = None,
    protocol: hbase_is.Protocol = None,
    kerberos_service: hbase_is.KerberosService = None,
    info_port: hbase_is.InfoPort = None,
    topic: Annotated[str, typer.Option(help="The source's topic or topics, separated by commas.")] = "",
    bootstrap_servers: Annotated[str | None, typer.Option(help="The source's Kafka brokers.")] = None,
    setting: kafka_is.Setting = None,
    store: Annotated[
        str | None, typer.Option(help="The checkpoint store, if it isn't in that database.", callback=resolved)
    ] = None,
    require_tls: Annotated[
        bool, typer.Option("--require-tls", help="As the pipeline has it: what is not reached by TLS is a problem.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """What the pipeline guarantees, and whether its servers are set up for it. Changes nothing. Exit code 1 if not."""
    from onefold.cli.doctor.diagnosis import diagnose
    from onefold.cli.doctor.report import print_diagnosis

    sinks: list[Sink] = []
    if postgres is not None:
        rows = {
            "delivery": delivery.value,
            "mode": mode.value,
            "key": comma_separated(key),
            "order": comma_separated(order),
            "delete_when_true": delete_when_true,
            "delete_when_null": delete_when_null,
            "role": role,
            "name": sink,
            "ledger": ledger,
        }
        sinks.append(_postgres(postgres, table, rows))
    records = kafka_is.kafka_sink(
        into,
        into_servers or bootstrap_servers,
        setting or [],
        into_delivery=into_delivery,
        into_name=into_name,
        id=id,
        into_ledger=into_ledger,
        transactional_id_prefix=transactional_id_prefix,
        transaction_timeout_s=transaction_timeout_s,
        outage_max_s=outage_max_s,
    )
    if records is not None:
        sinks.append(records)
    cells = hbase_is.hbase_sink(
        hbase,
        hbase_table,
        hbase_mode=hbase_mode,
        hbase_order=comma_separated(hbase_order),
        hbase_name=hbase_name,
        row_key=row_key,
        salt=salt,
        hash=hash,
        columns=columns,
        family=family,
        hbase_delete_when_true=hbase_delete_when_true,
        delete_mode=delete_mode,
        tombstone_column=tombstone_column,
        merge=merge,
        sequence=sequence,
        dense_sequence=dense_sequence,
        hbase_ledger=hbase_ledger,
        transport=transport,
        protocol=protocol,
        kerberos_service=kerberos_service,
        info_port=info_port,
    )
    if cells is not None:
        sinks.append(cells)
    if not sinks:
        raise ConfigError(
            "option-missing",
            "name the pipeline's sinks: --postgres URL --table NAME, or --into TOPIC, or --hbase SERVERS --hbase-table"
            " NAME --row-key COLUMNS, or several of these",
        )
    source = _source(comma_separated(topic), bootstrap_servers, setting or [])
    found = diagnose(pipeline, sinks, store=store, source=source, require_tls=require_tls)
    if as_json:
        json.dump(found.as_dict(), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        print_diagnosis(Console(soft_wrap=True), found)
    if not found.holds:
        raise typer.Exit(1)


def _postgres(url: str, table: str | None, settings: Mapping[str, Any]) -> Sink:
    from onefold.sinks import PostgresSink

    if table is None:
        raise ConfigError("option-missing", "--postgres goes with --table, the sink's table")
    return PostgresSink(url, table, **settings)


def _source(topics: Sequence[str], servers: str | None, settings: Sequence[str]) -> Any:
    from onefold.sources import KafkaSource

    if not topics:
        return None
    if servers is None:
        raise ConfigError("option-missing", "--topic goes with --bootstrap-servers, the brokers of the source's topics")
    return KafkaSource(topics, bootstrap_servers=servers, client_config=settings_of(settings))
