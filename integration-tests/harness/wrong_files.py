"""Files of pipelines with one thing wrong in each, for test_wrong_files.py and the page that it writes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["DOCTOR", "FILES", "OFFLINE", "ORDERS", "RUN", "SPARK", "TWICE", "Said", "Wrong", "page"]

# Right as it is: with the values of `Servers`, or without any server.
ORDERS = """\
name = "orders"

[[sources]]
kind = "kafka"
topics = "{topic}"
bootstrap_servers = "{kafka}"
format = "json"
schema = "id long, amount decimal(12,2)"
timeout_s = 3

[[sinks]]
kind = "postgres"
url = "{postgres}"
table = "orders"
connect_timeout_s = 3
"""
FILES = {  # beside it
    "functions.py": "number = 3\ndef clean(batch): yield batch\ndef fails(df): return df.select(df.amuont)\n",
    "broken.py": "import nothing_of_this_name\n",
    "password": "secret\n",
    "a-file": "",
    "same.toml": ORDERS,
    "beside.toml": ORDERS.replace('"orders"', '"beside"', 1).replace(
        "\n", '\ncheckpoint = ".onefold/orders.checkpoint"\n', 1
    ),
}
# What another run says otherwise: a store's id, how long it took, librdkafka's own words on why no broker answered.
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_WAITED = re.compile(r"after \d+ms")
_LIBRDKAFKAS = re.compile(r"\([^()]*(?:\([^()]*\)[^()]*)*\)(?=\. Is the broker up)")


@dataclass(frozen=True)
class Wrong:
    """`change` replaces a text of ORDERS by another, or follows its end. `code` is the error's that a start would end
    with, and `also` what doctor says of another part at the same server. `sql` sets the database up; {role} is a role
    without any right."""

    what: str
    change: tuple[str, str] | str
    code: str
    arguments: Sequence[str] = ("orders.toml",)
    sql: str = ""
    also: str = ""

    def text(self) -> str:
        if isinstance(self.change, str):
            return ORDERS + self.change
        old, new = self.change
        assert old in ORDERS, old
        return ORDERS.replace(old, new, 1)


@dataclass(frozen=True)
class Said:
    """What a command said of it: one error, or several with NUL between. `places` are texts of this machine, and what
    stands for them on the page."""

    wrong: Wrong
    exit_code: int
    text: str
    places: Mapping[str, str] = field(default_factory=dict)

    def row(self) -> str:
        said = "<br>".join(" ".join(error.split()) for error in self.text.split("\0"))
        said = _ID.sub("...", _LIBRDKAFKAS.sub("(...)", _WAITED.sub("after ... ms", said)))
        for place, stands in sorted(self.places.items(), key=lambda each: -len(each[0])):
            said = said.replace(place, stands)
        return f"| {self.wrong.what} | {self.exit_code} | {said.replace('|', chr(92) + '|')} |"


def page(said: Iterable[Said]) -> str:
    rows = [each.row() for each in said]
    return "\n".join(["| What is wrong | Exit code | What is said |", "| --- | --- | --- |", *rows])


SINK = ORDERS[ORDERS.index("[[sinks]]") :]
_URL = 'url = "{postgres}"'
_KIND = 'kind = "postgres"\nurl = "{postgres}"\ntable = "orders"\nconnect_timeout_s = 3\n'
_TABLE = "CREATE TABLE orders (id bigint, amount numeric(12,2))"
_STEP = "\n[[steps]]\n"
_IN_SPARK = 'schema = "id long, amount decimal(12,2)"\n'

OFFLINE = (
    Wrong("no such file", "", "file-unreadable", ("order.toml",)),
    Wrong("no TOML", ('name = "orders"', 'name = "orders'), "file-invalid"),
    Wrong("a typo in a key", ("table =", "tabel ="), "option-unknown"),
    Wrong("a typo in a table's name", ("[[sources]]", "[[sorces]]"), "option-unknown"),
    Wrong("a typo in a kind", ('"postgres"', '"postgers"'), "option-value"),
    Wrong("a schema with a type that there is not", ("id long", "id lnog"), "option-value"),
    Wrong("no kind", ('kind = "postgres"\n', ""), "option-value"),
    Wrong("a typo in a format", ('"json"', '"jason"'), "option-value"),
    Wrong("a number for a text", ('table = "orders"', "table = 3"), "option-value"),
    Wrong("a text for true or false", '\n[spark]\navailable_now = "yes"\n', "option-value"),
    Wrong("one table for the list of sinks", ("[[sinks]]", "[sinks]"), "option-value"),
    Wrong("no sink", (SINK, ""), "option-missing"),
    Wrong("no topic", ('topics = "{topic}"\n', ""), "option-value"),
    Wrong("a name with a slash", ('name = "orders"', 'name = "shop/orders"'), "pipeline-name"),
    Wrong(
        "an environment variable that is not set", (_URL, 'url = "${{SHOP_DATABASE}}"'), "environment-variable-missing"
    ),
    Wrong("a secret's file that is not there", 'password_file = "passwort"\n', "file-unreadable"),
    Wrong(
        "a password in the URL, and one in a file",
        (_URL, 'url = "postgresql://shop:x@localhost/shop"\npassword_file = "password"'),
        "options-conflict",
    ),
    Wrong("a URL that is none", (_URL, 'url = "postgresql://shop@localhost:port/shop"'), "url-unreadable"),
    Wrong(
        "a database that onefold does not know",
        (_KIND, 'kind = "sql"\nurl = "oracle://shop@db/shop"\ntable = "t"\n'),
        "database-unknown",
    ),
    Wrong(
        "a SQLite file with no whole path",
        (_KIND, 'kind = "sql"\nurl = "sqlite:///shop.db"\ntable = "t"\n'),
        "sqlite-relative",
    ),
    Wrong(
        "the same for the store",
        ('name = "orders"\n', 'name = "orders"\nstore = "sqlite:///orders.db"\n'),
        "sqlite-relative",
    ),
    Wrong(
        "two sinks of one name",
        '\n[[sinks]]\nkind = "sql"\nurl = "sqlite:////srv/shop.db"\ntable = "orders"\n',
        "sink-names",
    ),
    Wrong("an upsert without a key", 'mode = "upsert"\n', "option-missing"),
    Wrong("a key without upserts", 'key = "id"\n', "options-conflict"),
    Wrong("a delivery that there is not", 'delivery = "exactly_once"\n', "option-value"),
    Wrong(
        "a keyed topic without ids",
        (SINK, '[[sinks]]\nkind = "kafka"\ntopic = "out"\nbootstrap_servers = "localhost:9092"\ndelivery = "keyed"\n'),
        "option-missing",
    ),
    Wrong(
        "HBase cells without a family",
        (SINK, '[[sinks]]\nkind = "hbase"\nservers = "localhost:9090"\ntable = "cells"\nrow_key = "id"\n'),
        "option-missing",
    ),
    Wrong(
        "dead letters, and no sink for them",
        ('format = "json"', 'format = "json"\non_error = "dead_letter"'),
        "dead-letters-mismatch",
    ),
    Wrong(
        "a start that there is not",
        ('format = "json"', 'format = "json"\nstarting_offsets = "earlist"'),
        "option-value",
    ),
    Wrong(
        "two steps in one",
        _STEP + 'filter = "amount > 0"\nmap_batches = "functions.py:clean"\n',
        "options-conflict",
    ),
    Wrong("a function that is not in its file", _STEP + 'map_batches = "functions.py:claen"\n', "reference-missing"),
    Wrong("a function's file that is not there", _STEP + 'map_batches = "function.py:clean"\n', "file-unreadable"),
    Wrong("a function's file that fails", _STEP + 'map_batches = "broken.py:clean"\n', "reference-broken"),
    Wrong("no function", _STEP + 'map_batches = "functions.py:number"\n', "option-value"),
    Wrong("a typo in a filter's column", _STEP + 'filter = "amuont > 0"\n', "no-such-column"),
    Wrong("a filter that only one dialect of SQL has", _STEP + 'filter = "amount ~ 1"\n', "expression-unsupported"),
    Wrong("SQL without the columns that it gives", _STEP + 'sql = "SELECT id FROM source"\n', "option-missing"),
    Wrong(
        "SQL before other steps",
        f'{_STEP}sql = "SELECT id, amount FROM source"\n{_IN_SPARK}{_STEP}filter = "amount > 0"\n',
        "spark-operator-place",
    ),
    Wrong(
        "SQL on the engine",
        ("[[sources]]", f'runtime = "engine"\n{_STEP}sql = "SELECT id, amount FROM source"\n{_IN_SPARK}\n[[sources]]'),
        "only-on-spark",
    ),
    Wrong("a trigger that is no time", '\n[spark]\nprocessing_time = "soon"\n', "option-value"),
    Wrong("no setting of Spark's", '\n[spark]\nsettings = {{ "sql.shuffle.partitions" = 8 }}\n', "option-value"),
    Wrong("no restart at all, said by a number", "\n[restart]\nattempts = 0\n", "option-value"),
    Wrong(
        "TLS required, and not set up", ('name = "orders"\n', 'name = "orders"\nrequire_tls = true\n'), "tls-required"
    ),
    Wrong("an object in Python that is no pipeline", "", "option-value", ("functions.py:number",)),
)
RUN = (
    Wrong("one pipeline twice", "", "pipeline-twice", ("orders.toml", "same.toml")),
    Wrong("two pipelines with one checkpoint", "", "checkpoint-twice", ("orders.toml", "beside.toml")),
)
SPARK = (
    Wrong("a master that Spark does not know", '\n[spark]\nmaster = "lokal"\n', "spark-not-started"),
    Wrong("threads that are no number", '\n[spark]\nmaster = "local[two]"\n', "spark-not-started"),
    Wrong(
        "a size of the heap that is none",
        '\n[spark]\nsettings = {{ "spark.driver.memory" = "2 gigabytes" }}\n',
        "spark-not-started",
    ),
)
TWICE = Wrong("two daemons on one pipeline: this is what the first one says", "", "taken-over")
DOCTOR = (
    Wrong("no broker at the source's address", ("{kafka}", "127.0.0.1:1"), "kafka-unreachable"),
    Wrong("no such topic", ("{topic}", "{topic}-nowhere"), "topic-missing"),
    Wrong(
        "a wrong password for Kafka (SASL)",
        ('"{kafka}"', '"{kafka_tls}"\nclient_config = {{ {login_wrong} }}'),
        "kafka-access-denied",
    ),
    Wrong(
        "a principal that may not read the topic",
        ('"{kafka}"', '"{kafka_tls}"\nclient_config = {{ {login} }}'),
        "topic-not-readable",
    ),
    Wrong(
        "plain text to a broker that wants TLS",
        ('bootstrap_servers = "{kafka}"', 'bootstrap_servers = "{kafka_tls}"'),
        "kafka-unreachable",
    ),
    Wrong(
        "a setting that librdkafka does not know",
        ("timeout_s = 3", 'timeout_s = 3\nclient_config = {{ "fetch.min.byts" = 1 }}'),
        "kafka-setting-refused",
    ),
    Wrong(
        "no Postgres at the address",
        (_URL, 'url = "postgresql://shop@127.0.0.1:1/shop"'),
        "postgres-unreachable",
        also="postgres-unreachable",
    ),
    Wrong(
        "a database that is not there",
        (_URL, 'url = "{postgres}_gone"'),
        "postgres-connection-refused",
        also="postgres-connection-refused",
    ),
    Wrong(
        "a wrong password for Postgres",
        (_URL, 'url = "{wrong_password}"'),
        "postgres-connection-refused",
        also="postgres-connection-refused",
    ),
    Wrong(
        "TLS to a Postgres that has none",
        (_URL, 'url = "{postgres}?sslmode=require"'),
        "postgres-connection-refused",
        also="postgres-connection-refused",
    ),
    Wrong(
        "no right to make the ledger",
        (_URL, 'url = "{as_role}"'),
        "ledger-permission",
        sql=f"{_TABLE}; GRANT ALL ON orders TO {{role}}",
    ),
    Wrong(
        "no right to insert",
        (_URL, 'url = "{as_role}"'),
        "table-permission",
        sql=f"{_TABLE}; CREATE SCHEMA onefold_sinks AUTHORIZATION {{role}}",
    ),
    Wrong(
        "a table with a narrower column",
        "",
        "table-mismatch",
        sql="CREATE TABLE orders (id bigint, amount numeric(4,2))",
    ),
    Wrong(
        "upserts into a table without a unique index",
        'mode = "upsert"\nkey = "id"\norder = "amount"\n',
        "unique-index-missing",
        sql=_TABLE,
    ),
    Wrong(
        "SQL with a typo in a column",
        _STEP + 'sql = "SELECT id, amuont FROM source"\n' + _IN_SPARK,
        "transform-sql-invalid",
    ),
    Wrong("SQL that is none", _STEP + 'sql = "SELEC id FROM source"\n' + _IN_SPARK, "transform-sql-invalid"),
    Wrong(
        "SQL that gives other columns than it says",
        _STEP + 'sql = "SELECT id FROM source"\n' + _IN_SPARK,
        "spark-operator-schema",
    ),
    Wrong("a function that fails", _STEP + 'dataframe = "functions.py:fails"\n' + _IN_SPARK, "transform-failed"),
    Wrong(
        "a sink's topic that is not there",
        (SINK, '[[sinks]]\nkind = "kafka"\ntopic = "{topic}-out"\nbootstrap_servers = "{kafka}"\ntimeout_s = 3\n'),
        "topic-missing",
    ),
    Wrong(
        "no HBase at the address",
        (
            SINK,
            '[[sinks]]\nkind = "hbase"\nservers = {{ servers = "127.0.0.1:1", timeout_s = 1 }}\ntable = "orders"\n'
            'row_key = "id"\nfamily = "f"\n',
        ),
        "hbase-unreachable",
    ),
    Wrong(
        "no server for the store",
        ('name = "orders"\n', 'name = "orders"\nstore = "postgresql://shop@127.0.0.1:1/shop?connect_timeout=2"\n'),
        "postgres-unreachable",
    ),
    Wrong(
        "a checkpoint in the place of a file",
        ('name = "orders"\n', 'name = "orders"\ncheckpoint = "a-file/orders"\n'),
        "checkpoint-unwritable",
    ),
    Wrong(
        "a SQLite file in no folder",
        (_KIND, 'kind = "sql"\nurl = "sqlite:////nowhere/shop.db"\ntable = "orders"\n'),
        "database-access-denied",
    ),
)
