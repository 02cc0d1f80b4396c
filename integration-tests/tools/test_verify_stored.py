"""`onefold verify` of columns that write some values otherwise than the rows have them: such rows are right."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sqlalchemy as sa
from harness.definitions import named, piped
from harness.support import Rig
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.sinks import SqlSink

pytestmark = [pytest.mark.servers, pytest.mark.slow]

SCHEMA = "id string, v long, code string, short string, token string, doc string"
TABLE = (
    "CREATE DOMAIN five AS char(5); CREATE TABLE rows (id five, v bigint, code char(3), short varchar(3), token uuid,"
    " doc jsonb)"
)
TOKEN = "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A%02d"


def values() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {
            "id": f"k{number}" + " " * (number % 2),
            "v": number,
            "code": "ab"[: number % 3],
            "short": "xyz" + " " * (number % 4),
            "token": TOKEN % number,
            "doc": f'{{"b" : [1.50, 2e1, {number}], "a": 1, "a": "é\\u00e9"}}',
        }
        for number in range(40)
    ]
    return [*rows, {"id": "none", "v": 99}]


def verified(pipeline: str, *more: str) -> tuple[int, dict[str, int], dict[str, list[str]]]:
    answer = CliRunner().invoke(app, ["verify", pipeline, "--json", *more], catch_exceptions=False)
    ((_, result),) = json.loads(answer.stdout)["sinks"].items()
    counts = result["comparison"]
    kinds = ("lost", "duplicated", "changed", "unexpected")
    return answer.exit_code, {kind: n for kind in kinds if (n := counts[kind])}, counts["samples"]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_what_a_column_of_postgres_writes_otherwise_is_right_and_other_values_are_changed(rig: Rig, mode: str) -> None:
    rig.sql(TABLE)
    if mode == "upsert":
        rig.sql("CREATE UNIQUE INDEX ON rows (id)")
    rig.put_values([json.dumps(value).encode() for value in values()])
    source, changes = rig.source(schema=SCHEMA), {"mode": "upsert", "key": "id", "order": "v"}
    sink = rig.sink("staged", **(changes if mode == "upsert" else {}))
    rig.run(rig.pipeline(sink, source=source))
    pipeline, key = named(piped("test", source=source, sinks=[sink])), ["--key=id"] if mode == "append" else []
    assert verified(pipeline, *key) == (0, {}, {})
    assert verified(pipeline, *key, "--expect=SELECT id, v, code, short, token, doc FROM source") == (0, {}, {})
    rig.sql("UPDATE rows SET code = 'x' WHERE id = 'k1'")
    rig.sql("UPDATE rows SET short = 'xy' WHERE id = 'k2'")
    rig.sql("UPDATE rows SET token = gen_random_uuid() WHERE id = 'k3'")
    rig.sql("UPDATE rows SET doc = '{\"a\": 1}' WHERE id = 'k4'")
    rig.sql("DELETE FROM rows WHERE id = 'k5'")
    code, found, samples = verified(pipeline, *key)
    assert (code, found) == (1, {"lost": 1, "changed": 4})
    one = next(text for text in samples["changed"] if text.startswith("id=k1 "))
    assert "found 1): code is x, and was to be a" in one, samples
    plan = rig.directory / "plan.sql"
    CliRunner().invoke(app, ["verify", pipeline, *key, f"--plan={plan}"], catch_exceptions=False)
    rig.sql(plan.read_text())
    assert verified(pipeline, *key) == (0, {}, {})


def test_a_dead_letter_is_its_rows_whatever_the_column_of_the_key_writes(rig: Rig) -> None:
    rig.sql("CREATE TABLE rows (token uuid, code char(4) CHECK (code <> 'bad'))")
    rows = [{"token": TOKEN % number, "code": "bad" if number == 3 else "ok"} for number in range(9)]
    rig.put_values([json.dumps(row).encode() for row in rows])
    source, sink = rig.source(schema="token string, code string"), rig.sink("staged", on_error="dead_letter")
    rig.run(rig.pipeline(sink, source=source))
    pipeline = named(piped("test", source=source, sinks=[sink]))
    assert verified(pipeline, "--key=token") == (0, {}, {})
    rig.sql("DELETE FROM rows WHERE token = %s", TOKEN % 4)
    assert verified(pipeline, "--key=token")[:2] == (1, {"lost": 1})


def test_what_a_column_of_mariadb_writes_otherwise_is_right(rig: Rig, mariadb_url: str) -> None:
    engine = sa.create_engine(mariadb_url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (id BIGINT, short VARCHAR(3), code CHAR(4))")
    rig.put_values([b'{"id": %d, "short": "xyz%s"}' % (number, b" " * number) for number in range(9)])
    source, sink = rig.source(schema="id long, short string"), SqlSink(mariadb_url, "t")
    rig.run(rig.pipeline(sink, source=source))
    assert verified(named(piped("test", source=source, sinks=[sink])), "--key=id") == (0, {}, {})
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE t SET code = 'ab  '")
        connection.exec_driver_sql("UPDATE t SET short = 'xy' WHERE id = 2")
    query = "--expect=SELECT id, short, 'ab  ' AS code FROM source"
    pipeline = named(piped("test", source=source, sinks=[sink]))
    code, found, samples = verified(pipeline, "--key=id", query)
    assert (code, found) == (1, {"changed": 1}), samples


def test_columns_that_differ_in_case_alone_are_told_apart(rig: Rig) -> None:
    rig.sql('CREATE TABLE rows (id bigint, a text, "A" text, "B" bigint)')
    rig.put_values([b'{"id": %d, "a": "x%d", "A": "y%d", "B": 1}' % (i, i, i) for i in range(20)])
    rig.sql("INSERT INTO rows SELECT i, 'x' || i, 'y' || i, 1 FROM generate_series(0, 19) i")
    file = rig.directory / "pair.toml"
    file.write_text(
        f'name = "pair"\n[[sources]]\nkind = "kafka"\ntopics = ["{rig.topic}"]\nbootstrap_servers = "{rig.servers}"\n'
        'format = "json"\nschema = "id long, a string, A string, B long"\n[[steps]]\nfilter = "id >= 0"\n'
        f'[[sinks]]\nkind = "postgres"\nurl = "{rig.url}"\ntable = "rows"\n'
    )
    given = [str(file), "--without-ledger", "--key=id"]
    assert verified(*given) == (0, {}, {})
    assert verified(*given, "--expect=SELECT id, a, A FROM source") == (0, {}, {})
    rig.sql('UPDATE rows SET "A" = a WHERE id = 3')
    code, found, samples = verified(*given)
    assert (code, found) == (1, {"changed": 1})
    assert "A is x3, and was to be y3; from" in samples["changed"][0]
