"""`onefold verify`: the options, and the destination and source that they describe."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from onefold.cli import hbase_options as hbase_is
from onefold.cli import kafka_options as kafka_is
from onefold.cli.option_values import comma_separated, resolved, settings_of
from onefold.core import ConfigError

if TYPE_CHECKING:
    from onefold.sinks import KafkaSink, PostgresSink

__all__ = ["verify"]


class Mode(StrEnum):
    APPEND = "append"
    UPSERT = "upsert"
    ROW_KEY = "row_key"
    ROLLING = "rolling"
    INCREMENTAL = "incremental"


class OnError(StrEnum):
    FAIL = "fail"
    DEAD_LETTER = "dead_letter"


_OF_POSTGRES = (Mode.APPEND, Mode.UPSERT)


def verify(
    pipeline: Annotated[str, typer.Option(help="The pipeline's name.")],
    topic: Annotated[str, typer.Option(help="The source's topic or topics, separated by commas.")],
    bootstrap_servers: Annotated[str, typer.Option(help="The source's Kafka brokers.")],
    schema: Annotated[str, typer.Option(help="The records' schema, as in the pipeline: 'id long, at timestamp'.")],
    table: Annotated[str | None, typer.Option(help="The destination's table.")] = None,
    postgres: Annotated[str | None, typer.Option(help="URL of the destination's database.", callback=resolved)] = None,
    key: Annotated[str, typer.Option(help="The columns that name a row, separated by commas.")] = "",
    into: kafka_is.Into = None,
    into_servers: kafka_is.Servers = None,
    into_delivery: kafka_is.Delivery = None,
    into_name: kafka_is.Name = None,
    into_format: Annotated[str | None, typer.Option(help="The Kafka sink's format, if it isn't json.")] = None,
    into_key: Annotated[str, typer.Option(help="The Kafka sink's key.")] = "",
    into_headers: Annotated[str, typer.Option(help="The Kafka sink's headers.")] = "",
    id: kafka_is.Id = "",
    id_header: Annotated[str | None, typer.Option(help="keyed: the header that carries the id.")] = None,
    into_ledger: kafka_is.Ledger = None,
    transactional_id_prefix: kafka_is.Prefix = None,
    setting: kafka_is.Setting = None,
    hbase: hbase_is.Servers = None,
    row_key: hbase_is.RowKeyColumns = "",
    salt: hbase_is.Salt = None,
    hash: hbase_is.Hash = None,
    columns: hbase_is.Columns = "",
    family: hbase_is.Family = None,
    select: Annotated[list[str] | None, typer.Option(help="The pipeline's own columns, as SQL expressions.")] = None,
    where: Annotated[str | None, typer.Option(help="The pipeline's own filter, as a SQL expression.")] = None,
    store: Annotated[
        str | None, typer.Option(help="The checkpoint store, if it isn't in --postgres.", callback=resolved)
    ] = None,
    sink: Annotated[str | None, typer.Option(help="The sink's name, if it isn't the table's.")] = None,
    mode: Annotated[
        Mode | None,
        typer.Option(help="The sink's mode: of Postgres append (unless it is said), or upsert; of HBase the others."),
    ] = None,
    order: Annotated[
        str, typer.Option(help="upsert, row_key, rolling: the columns that say which version is newer.")
    ] = "",
    delete_when_true: Annotated[
        str | None, typer.Option(help="upsert, row_key: the column that marks deletions.")
    ] = None,
    delete_when_null: Annotated[str | None, typer.Option(help="upsert: the column that deletions lack.")] = None,
    delete_mode: hbase_is.DeleteMode = None,
    tombstone_column: hbase_is.TombstoneColumn = None,
    merge: hbase_is.Merge = None,
    sequence: hbase_is.Sequence = None,
    dense_sequence: hbase_is.DenseSequence = False,
    on_error: Annotated[OnError, typer.Option(help="dead_letter: rows may be dead letters.")] = OnError.FAIL,
    rejects_table: Annotated[str | None, typer.Option(help="The sink's rejects_table, if it was named.")] = None,
    source_position: Annotated[str, typer.Option(help="The sink's source_position, separated by commas.")] = "",
    positions: Annotated[bool, typer.Option(help="The rows have the source's kafka_* columns.")] = False,
    skips_bad_records: Annotated[bool, typer.Option(help="The source has on_error='skip'.")] = False,
    letters: Annotated[
        str | None, typer.Option(help="The pipeline's table of dead letters of its source, in --postgres.")
    ] = None,
    ledger: Annotated[str, typer.Option(help="The schema of the Postgres sink's ledger.")] = "onefold_sinks",
    hbase_ledger: hbase_is.Ledger = None,
    transport: hbase_is.Transport = None,
    protocol: hbase_is.Protocol = None,
    kerberos_service: hbase_is.KerberosService = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Compare the topic, up to the ledger's positions, with the destination, row by row. Exit code 1 if they differ."""
    from onefold.cli.verify.command import print_verification, run_verification
    from onefold.sources import KafkaSource

    of_postgres = {
        "delete_when_null": delete_when_null,
        "on_error": on_error.value,
        "rejects_table": rejects_table,
        "source_position": comma_separated(source_position),
    }
    versions = {"order": comma_separated(order), "delete_when_true": delete_when_true}
    shared = {name: value for name, value in versions.items() if value}
    of_kafka = kafka_is.kafka_sink(
        into,
        into_servers or bootstrap_servers,
        setting or [],
        into_delivery=into_delivery,
        into_name=into_name,
        into_format=into_format,
        into_key=into_key,
        into_headers=into_headers,
        id=id,
        id_header=id_header,
        into_ledger=into_ledger,
        transactional_id_prefix=transactional_id_prefix,
    )
    if of_kafka is not None:
        _check_alone(of_kafka, postgres if letters is None else None, hbase, table, mode, of_postgres | shared)
    if hbase is not None:
        _check_of_hbase(mode, postgres, letters, of_postgres)
    of_hbase = hbase_is.hbase_sink(
        hbase,
        table if hbase is not None else None,
        row_key=row_key,
        salt=salt,
        hash=hash,
        columns=columns,
        family=family,
        tombstone_column=tombstone_column,
        delete_mode=delete_mode,
        merge=merge,
        sequence=sequence,
        dense_sequence=dense_sequence,
        hbase_ledger=hbase_ledger,
        transport=transport,
        protocol=protocol,
        kerberos_service=kerberos_service,
        **({} if hbase is None else {"name": sink, "mode": mode, **shared}),
    )
    if (of_hbase is not None or of_kafka is not None) and letters is None:
        _check_store(pipeline, store)
    result = run_verification(
        pipeline=pipeline,
        source=KafkaSource(
            comma_separated(topic),
            bootstrap_servers=bootstrap_servers,
            format="json",
            schema=schema,
            columns="position" if positions else (),
            client_config=settings_of(setting or []),
            on_error="dead_letter" if letters is not None else "skip" if skips_bad_records else "fail",
        ),
        sink=of_kafka
        or of_hbase
        or _postgres(postgres, table, mode, comma_separated(key), ledger, sink, of_postgres | shared),
        letters=_letters(postgres, letters, ledger),
        key=comma_separated(key),
        select=select or [],
        where=where,
        store=store,
    )
    if as_json:
        json.dump({**asdict(result), "exact": result.is_exact}, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        print_verification(Console(), result)
    if not result.is_exact:
        raise typer.Exit(1)


def _postgres(
    url: str | None,
    table: str | None,
    mode: Mode | None,
    key: list[str],
    ledger: str,
    name: str | None,
    settings: Mapping[str, Any],
) -> PostgresSink:
    from onefold.sinks import PostgresSink

    if url is None:
        raise ConfigError(
            "option-missing", "name the destination: --postgres URL, or --hbase SERVERS with --row-key, or --into TOPIC"
        )
    if table is None:
        raise ConfigError("option-missing", "--postgres goes with --table, the sink's table")
    if not key:
        raise ConfigError("option-missing", "--postgres goes with --key, the columns that name a row: --key id")
    mode = mode or Mode.APPEND
    if mode not in _OF_POSTGRES:
        raise ConfigError(
            "options-conflict", f"--mode {mode.value} goes with --hbase; of a Postgres sink it is append or upsert"
        )
    return PostgresSink(
        url,
        table,
        name=name or "",
        mode="upsert" if mode is Mode.UPSERT else "append",
        key=key if mode is Mode.UPSERT else (),
        ledger=ledger,
        **settings,
    )


def _letters(url: str | None, table: str | None, ledger: str) -> PostgresSink | None:
    from onefold.sinks import PostgresSink

    if table is None:
        return None
    if url is None:
        raise ConfigError("option-missing", "--letters goes with --postgres, the database of that table")
    return PostgresSink(url, table, ledger=ledger)


def _check_of_hbase(
    mode: Mode | None, postgres: str | None, letters: str | None, of_postgres: Mapping[str, Any]
) -> None:
    """Raise ConfigError for what only a Postgres sink has: left unsaid, it would be left out."""
    if mode in _OF_POSTGRES:
        raise ConfigError(
            "options-conflict",
            f"--mode {mode.value} goes with --postgres; of an HBase sink it is row_key, rolling or incremental",
        )
    if postgres is not None and letters is None:
        raise ConfigError(
            "options-conflict", "verify looks at one destination: --postgres, or --hbase (with --letters both)"
        )
    misplaced = [name for name, value in of_postgres.items() if value and value != OnError.FAIL.value]
    if misplaced:
        raise ConfigError(
            "options-conflict", f"--{misplaced[0].replace('_', '-')} goes with a Postgres sink, not with --hbase"
        )


def _check_alone(
    sink: KafkaSink,
    postgres: str | None,
    hbase: str | None,
    table: str | None,
    mode: Mode | None,
    of_others: Mapping[str, Any],
) -> None:
    """Raise ConfigError for what only other sinks have: left unsaid, it would be left out."""
    others = {"postgres": postgres, "hbase": hbase, "table": table, "mode": mode, **of_others}
    misplaced = [name for name, value in others.items() if value and value != OnError.FAIL.value]
    if misplaced:
        option = misplaced[0].replace("_", "-")
        raise ConfigError(
            "options-conflict",
            f"--{option} belongs to another destination, and verify looks at one: this one is the topic"
            f" {sink.settings.topic!r}",
        )


def _check_store(pipeline: str, store: str | None) -> None:
    """Raise ConfigError where a store would be made, and be asked what it cannot know."""
    usual = Path(".onefold") / f"{pipeline}.db"
    if store is None and not usual.exists():
        raise ConfigError(
            "store-missing",
            f"The destination has no checkpoint store, and the usual one, {usual}, is not in this directory: name the"
            " pipeline's with --store, such as another sink's database (postgresql+psycopg://...)",
        )
