"""The Python blocks of README and docs, run against real servers: each page's one after another, in one namespace.

What a page takes for granted (a Spark session, a DataFrame, a server's address) is given here. Blocks that show a file
of docs/examples run elsewhere, as those files; that all blocks compile and name what there is, the unit tests say.
"""

from __future__ import annotations

import ast
import re
import types
import uuid
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from harness.support import Rig, wait_until
from psycopg import sql
from pyspark.sql import functions as F

from onefold import flow, pipeline, sinks, sources, spark
from onefold.clients.hbase import ColumnFamily, HBaseSettings, table_admin
from onefold.core.writing.dead_letters import LETTER_HEADERS
from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource
from onefold.spark import EpochWriter, FlowQuery
from onefold.spark.formats.kafka_source import OnefoldKafkaDataSource

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.xdist_group("hbase")]

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^(<!-- docs/examples/.*? -->\n)?```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Up to `run` a flow reaches no server: connectors/tests/docs/test_flow_page.py.
OFFLINE = ("flows.md", "engine.md", "state.md")
BEFORE_ONEFOLD = "append_with_jdbc"  # the job that README replaces
SCHEMA = "id long, account long, amount decimal(12,2), at timestamp"
TOPICS = ("orders", "returns", "events", "payments")
TARGETS = ("totals",)
TABLES = """
CREATE SCHEMA legacy;
CREATE TABLE legacy.orders (id bigint, amount numeric(12, 2), doc jsonb);
INSERT INTO legacy.orders VALUES (1, 2.50, '{"status": "paid", "tags": ["a"]}');
CREATE TABLE orders (id bigint, account bigint, amount numeric(12, 2), at timestamptz);
INSERT INTO orders VALUES (1, 2, 3.50, '2026-11-20 12:00Z');
"""
# Of a page, before its n-th block that runs: what its text or a block that is not run says.
GIVEN = {
    ("docs/errors.md", 0): "query = flow.start(spark, checkpoint=checkpoint)",
    ("docs/postgres-source.md", 2): "frozen = PostgresSource(url, 'orders').frozen()\nsource = frozen.__enter__()",
    ("docs/postgres-source.md", 3): "frozen.__exit__(None, None, None)",
}


def pages() -> dict[str, list[str]]:
    """Of each page with blocks to run: these, in the page's order."""
    found = {}
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        blocks = [code for shown, code in BLOCK.findall(path.read_text()) if not shown and BEFORE_ONEFOLD not in code]
        if blocks and path.name not in OFFLINE:
            found[str(path.relative_to(ROOT))] = blocks
    return found


def kafka_format() -> type[OnefoldKafkaDataSource]:
    """In the place of Spark's own connector, whose jar is not here: the same options and columns. A class of a function
    goes to Spark's workers by value."""

    class Kafka(OnefoldKafkaDataSource):
        @classmethod
        def name(cls) -> str:
            return "kafka_here"

    return Kafka


class Completed(ast.NodeTransformer):
    """Puts the page's own server, sink or options where a block has `...` for what every reader fills in."""

    def visit_Call(self, call: ast.Call) -> ast.Call:
        self.generic_visit(call)
        if any(_is_open(argument) for argument in call.args):
            name = call.func.id if isinstance(call.func, ast.Name) else ast.unparse(call.func).rpartition(".")[2]
            first = [ast.Name("servers", ast.Load())] if name == "HBaseSink" and _is_open(call.args[0]) else []
            call.args = first + [argument for argument in call.args if not _is_open(argument)]
            if name in ("KafkaSource", "KafkaSink", "options"):
                call.keywords.append(ast.keyword(None, ast.Name(f"more_of_{name}", ast.Load())))
        return call

    def visit_List(self, node: ast.List) -> ast.expr:
        return ast.Name("some_sinks", ast.Load()) if any(_is_open(element) for element in node.elts) else node


def _is_open(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


@pytest.fixture
def topics(rig: Rig) -> Iterator[None]:
    """The docs' topics: some orders in each that a block reads, and nothing in those that one writes."""
    admin, names = AdminClient({"bootstrap.servers": rig.servers, "log_level": 0}), TOPICS + TARGETS
    for made in admin.create_topics([NewTopic(name, num_partitions=1) for name in names]).values():
        made.result(30)
    for name in TOPICS:
        order = b'{"id":%d,"account":7,"amount":"1.50","at":"2026-11-20T12:00:00Z"}'
        rig.put_values([order % number for number in range(20)], partitions=1, topic=name)
    yield
    for gone in admin.delete_topics(list(names)).values():
        gone.result(30)
    wait_until(lambda: not set(names) & set(admin.list_topics(timeout=10).topics), "deleting the topics")


@pytest.fixture
def addresses(rig: Rig, hbase_server: Any, topics: None) -> Iterator[dict[str, str]]:  # noqa: ARG001
    """Of each address in the docs, the real one; there are tables and rows."""
    table, settings = f"docs_{uuid.uuid4().hex[:12]}", HBaseSettings(hbase_server.servers)
    table_admin.create(settings, table, [ColumnFamily(b"f"), ColumnFamily(b"d")])
    with psycopg.connect(rig.url, autocommit=True) as connection:
        connection.execute(TABLES)
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(table)))
    yield {
        **dict.fromkeys(("broker:9092", "kafka:9092", "localhost:9092"), rig.servers),
        **dict.fromkeys(("thrift1:9090,thrift2:9090", "thrift1:9090"), hbase_server.servers),
        "postgresql+psycopg://...": rig.url.replace("postgresql://", "postgresql+psycopg://"),
        **dict.fromkeys(("postgresql://localhost/shop", "postgresql://db/shop"), rig.url),
        **dict.fromkeys(("s3a://bucket", "s3://lake", "/srv/orders"), rig.directory.as_uri()),
        "postgresql://localhost/lake": rig.url.rpartition("/")[0] + f"/{table}",
        "/var/lib": str(rig.directory),
        **dict.fromkeys(("shop:orders", "shop:totals"), table),
        '"kafka"': '"kafka_here"',
    }
    table_admin.drop(settings, table)
    with psycopg.connect(rig.url, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(table)))


def namespace(rig: Rig, addresses: Mapping[str, str]) -> dict[str, Any]:
    """What a block may use without saying where it comes from."""
    servers, faces = addresses["thrift1:9090"], (flow, pipeline, sinks, sources, spark)
    kafka = KafkaSource("orders", bootstrap_servers=rig.servers, format="json", schema=SCHEMA)
    sink = PostgresSink(rig.url, table="orders")
    orders = rig.flow(sink, name="orders", source=kafka)
    totals = rig.spark.createDataFrame([(7, Decimal("1.50"))], "customer long, amount decimal(12,2)")
    return {
        **{name: getattr(face, name) for face in faces for name in face.__all__},
        "LETTER_HEADERS": LETTER_HEADERS,
        "F": F,
        "pa": pa,
        "pc": pc,
        "os": types.SimpleNamespace(environ={"KAFKA_PASSWORD": "secret"}),
        "sys": types.SimpleNamespace(argv=["totals.py", "2026-11-21"]),
        "spark": rig.spark,
        "orders": kafka,
        "source": kafka,
        "kafka": kafka,
        "totals": totals,
        "totals_of": lambda _spark, _day: totals,
        "flow": orders,
        "pipeline": pipeline.Pipeline(orders, runtime=pipeline.Spark(session=rig.spark, available_now=True)),
        "writer": EpochWriter("orders", [sink]),
        "sink": sink,
        "some_sinks": [sink],
        "url": rig.url,
        "OLD": rig.url,
        "store": addresses["postgresql+psycopg://..."],
        "servers": servers,
        "schema": SCHEMA,
        "options": {"kafka.bootstrap.servers": rig.servers, "subscribe": "orders"},
        "table": addresses["shop:orders"],
        "target": f"{rig.directory}/target",
        "checkpoint": f"{rig.directory}/checkpoint",
        "more_of_KafkaSource": {"bootstrap_servers": rig.servers, "format": "json", "schema": "id long"},
        "more_of_KafkaSink": {"bootstrap_servers": rig.servers},
        "more_of_options": {"kafka.bootstrap.servers": rig.servers, "subscribe": "orders"},
    }


def marked(page: str) -> Any:
    starts_containers = page == "docs/testing.md"
    only = pytest.mark.only_with_servers("containers", reason="its blocks start containers")
    return pytest.param(page, marks=[only] if starts_containers else [])


@pytest.mark.parametrize("page", [marked(page) for page in pages()])
def test_the_blocks_of_a_page_run(
    page: str, rig: Rig, addresses: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def until_the_end(_: EpochWriter, query: Any, timeout_s: int | None = None) -> None:  # noqa: ARG001
        """In place of waiting for ever."""
        query.processAllAvailable()
        query.stop()

    monkeypatch.setattr(EpochWriter, "await_termination", until_the_end)
    rig.spark.dataSource.register(kafka_format())
    names = namespace(rig, addresses)
    try:
        for number, block in enumerate(pages()[page]):
            exec(GIVEN.get((page, number), ""), names)
            for address, real in addresses.items():
                block = block.replace(address, real)
            tree = ast.fix_missing_locations(Completed().visit(ast.parse(block)))
            exec(compile(tree, f"{page}, block {number}", "exec"), names)
        exec(GIVEN.get((page, len(pages()[page])), ""), names)
    finally:
        rig.pipelines += [each for each in names.values() if isinstance(each, EpochWriter | FlowQuery)]
