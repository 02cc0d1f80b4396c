"""`onefold verify` of SQLite and MariaDB: exact where it is, every change by hand found, and what it cannot read is one
clear error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from harness.definitions import named, piped
from harness.support import Rig
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.core import BadRecord, ConfigError, OnefoldError
from onefold.sinks import SqlSink
from onefold.spark.verify.verification import Verification, verify

pytestmark = [pytest.mark.servers, pytest.mark.slow]
TYPES = (
    "id long, yes boolean, small short, part float, whole double, price decimal(12,2), big decimal(38,10), name string,"
    " raw binary, day date, local timestamp_ntz, at timestamp"
)
ROW = {
    "yes": True,
    "small": -7,
    "part": 16777216.5,
    "whole": 0.1,
    "price": "3.50",
    "big": "1234567890123456789012345678.0123456789",
    "name": "Žofie 'x'; --",
    "raw": "AAH/",
    "day": "2024-02-29",
    "local": "2024-02-29T23:59:59.000001",
    "at": "2024-02-29T23:59:59.123456+01:00",
}
VERSIONS = "id long, version long, name string, gone boolean"


class Case:
    def __init__(self, rig: Rig, url: str) -> None:
        self.rig, self.url = rig, url
        self.engine = sa.create_engine(url, poolclass=sa.NullPool)

    def put(self, *values: dict[str, Any]) -> None:
        self.rig.put_values([json.dumps(value).encode() for value in values])

    def do(self, *statements: str) -> None:
        with self.engine.begin() as connection:
            for statement in statements:
                connection.execution_options(no_parameters=True).exec_driver_sql(statement)  # else % is one

    def run(self, schema: str, **options: Any) -> None:
        source = self.rig.source(schema=schema)
        self.rig.run(self.rig.pipeline(SqlSink(self.url, "t", **options), source=source))

    def check(self, schema: str, by: tuple[str, ...] = (), **options: Any) -> Verification:
        sink = SqlSink(self.url, "t", **options)
        writer = self.rig.pipeline(sink, source=self.rig.source(schema=schema))
        return verify(self.rig.spark, writer, sink, by)

    def mend(self, pipeline: str, *more: str) -> None:
        """By what `onefold verify --plan` writes."""
        file = self.rig.directory / "plan.sql"
        assert CliRunner().invoke(app, ["verify", pipeline, f"--plan={file}", *more]).exit_code == 1
        _, _, text = file.read_text().partition("BEGIN;\n")
        self.do(*text.partition("COMMIT;\n")[0].split(";\n")[:-1])

    def refusal(self, kind: type[OnefoldError], schema: str, **options: Any) -> str:
        with pytest.raises(kind) as raised:
            self.check(schema, ("id",), **options)
        return f"{raised.value.code}: {raised.value}"


@pytest.fixture(params=["sqlite", "mariadb"])
def case(request: pytest.FixtureRequest, rig: Rig) -> Iterator[Case]:
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{rig.directory / 'rows.db'}" if is_sqlite else request.getfixturevalue("mariadb_url")
    made = Case(rig, url)
    yield made
    made.engine.dispose()


def wrong(found: Verification) -> dict[str, int]:
    kinds = ("lost", "duplicated", "changed", "unexpected")
    return {kind: count for kind in kinds if (count := getattr(found.comparison, kind))}


def test_appended_rows_of_every_type_are_exact_and_each_change_by_hand_is_found(case: Case) -> None:
    case.put(*({"id": number, **ROW} for number in range(300)), {"id": 300, "name": "a\\b\n'c' %s"}, {})
    case.run(TYPES)
    found = case.check(TYPES, ("id",))
    assert found.is_exact, found
    assert (found.comparison.expected, found.comparison.actual, found.epochs) == (302, 302, 2)
    case.do(
        "DELETE FROM t WHERE id IN (1, 2, 300) OR id IS NULL",
        "INSERT INTO t SELECT * FROM t WHERE id = 3",
        "UPDATE t SET price = '3.51' WHERE id = 4",
        "UPDATE t SET big = '1234567890123456789012345678.0123456780' WHERE id = 5",
        "UPDATE t SET at = '2024-02-29 22:59:59.123457' WHERE id = 6",
        "UPDATE t SET name = NULL WHERE id = 7",
        "UPDATE t SET part = 16777218 WHERE id = 8",
        "INSERT INTO t (id, yes) VALUES (999, 1)",
    )
    assert wrong(case.check(TYPES, ("id",))) == {"lost": 4, "duplicated": 1, "changed": 5, "unexpected": 1}
    case.mend(named(piped("test", source=case.rig.source(schema=TYPES), sinks=[SqlSink(case.url, "t")])), "--key=id")
    assert case.check(TYPES, ("id",)).is_exact


def test_upserts_and_deletions_are_exact_and_the_command_says_so(case: Case) -> None:
    rows = [
        {"id": key, "version": version, "name": f"v{version}", "gone": version == 3 and key % 5 == 0}
        for version in (2, 1, 3)
        for key in range(40)
    ]
    case.put(*rows)
    options = {"mode": "upsert", "key": "id", "order": "version", "delete_when_true": "gone"}
    case.run(VERSIONS, **options)
    source, sink = case.rig.source(schema=VERSIONS), SqlSink(case.url, "t", **options)
    pipeline = named(piped("test", source=source, sinks=[sink]))
    answer = CliRunner().invoke(app, ["verify", pipeline, "--json"])
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.output)["sinks"]["t"]["comparison"]
    assert (found["expected"], found["actual"]) == (32, 32)
    case.do(
        "DELETE FROM t WHERE id = 1",
        "UPDATE t SET version = 2 WHERE id = 2",
        "INSERT INTO t VALUES (5, 1, 'back')",
    )
    assert wrong(case.check(VERSIONS, **options)) == {"lost": 1, "changed": 1, "unexpected": 1}
    case.mend(pipeline)
    assert CliRunner().invoke(app, ["verify", pipeline]).exit_code == 0


def test_columns_of_the_users_own_types_are_read_exactly(case: Case) -> None:
    case.do("CREATE TABLE t (id DECIMAL(20), part FLOAT, note VARCHAR(20) DEFAULT 'theirs', day TEXT)")
    schema = "part float, day date" if case.engine.dialect.name == "sqlite" else "id long, part float"
    case.put({"id": 2**53 + 1, "part": 16777215.0, "day": "2024-02-29"}, {"id": -1, "part": 0.1})
    case.run(schema)
    found = case.check(schema, ("part",))
    assert found.is_exact and found.comparison.actual == 2, found


def test_what_cannot_be_verified_is_one_clear_error(case: Case) -> None:
    case.put(*({"id": number, **ROW} for number in range(10)))
    case.run(TYPES)
    appends = named(piped("test", source=case.rig.source(schema=TYPES), sinks=[SqlSink(case.url, "t")]))
    refused = CliRunner().invoke(app, ["verify", appends])
    assert isinstance(refused.exception, ConfigError) and "--key id" in str(refused.exception)
    if case.engine.dialect.name == "sqlite":
        case.do("UPDATE t SET price = 'dear' WHERE id = 1")
        assert "value-not-readable: table t has a value that no row" in case.refusal(BadRecord, TYPES)
        case.do("UPDATE t SET price = NULL, day = 'soon' WHERE id = 1")
        assert "value-not-readable" in case.refusal(BadRecord, TYPES)
        case.do("UPDATE t SET day = NULL, small = 1e9 WHERE id = 1")
        assert "column small, int16" in case.refusal(BadRecord, TYPES)
    case.do("ALTER TABLE t DROP COLUMN price")
    assert "verify-columns-missing: table t has no columns price" in case.refusal(ConfigError, TYPES)
    case.do("DROP TABLE t")
    assert "table-missing: there is no table t in" in case.refusal(ConfigError, TYPES)
