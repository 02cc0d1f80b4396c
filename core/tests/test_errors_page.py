"""docs/errors.md: every error's code, by type, collected from the code. And that a code names one situation."""

from __future__ import annotations

import ast
import copy
import pickle
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest
from harness.renewing import assert_renewed

from onefold.core import errors
from onefold.core.errors import DataLoss, OnefoldError, Retriable

ROOT = Path(__file__).parents[2]
PORTIONS = ("connectors", "sinks", "sources", "clients", "core")
TREE = {name: kind for name, kind in sorted(vars(errors).items()) if isinstance(kind, type)}
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+){0,3}")
TEXT_MAX = 150
FOLDERS_MAX = 4
# Codes of many sites, or of a message that is mostly a server's: no text of the code says what they mean.
MEANINGS = {
    "column-missing": "the rows have no column that an option names, or that the destination needs",
    "column-name-taken": "a column of the rows has a name that onefold adds, or keeps for itself",
    "column-type": "a column's type cannot be used for what an option says, or cannot be written",
    "commit-unanswered": "the connection broke during a commit, which may have taken effect",
    "database-resources-exhausted": "the database has no free connection, memory or disk",
    "database-unavailable": "the database is down, or refuses for now; nothing took effect",
    "decided-work-gone": "an epoch was decided, and prepared transactions of it are gone; the message names them",
    "download-failed": "a server's jars could not be downloaded; the message says why",
    "epoch-notes-lost": "a write-through destination no longer knows an epoch that was decided: it is an older copy",
    "expression-type": "an expression of a flow cannot be computed of its stream's columns; the message says why",
    "expression-unsupported": "a text has what the language of expressions lacks; the message names it and its place",
    "function-row": "a function of a flow gives a row of other columns than it was declared with",
    "function-value": "a function of a flow gives a value that its column does not take, or Python lacks one of a row",
    "hbase-table-unsuitable": "HBase's table is disabled, or lacks a column family, versions or durability",
    "hbase-unanswered": "an HBase Thrift server took a request, and did not answer, or so that it cannot be read",
    "id-not-usable": "a record's id is missing, or is no SOURCE:NUMBER, which OrderedIds needs",
    "kafka-not-ready": "a broker is up, and does not know yet who leads or coordinates what it was asked about",
    "kafka-unanswered": "a Kafka broker took a request, and did not answer, or so that it cannot be read",
    "ledger-topic-unsuitable": "the ledger topic may lose or delete what it acknowledged; the message says why",
    "ledger-write-unanswered": "a row of the ledger topic was sent, and it is not known whether it was written",
    "module-not-importable": "Spark's Python workers cannot import onefold, or the module of a function of the job",
    "no-such-column": "a column that an option names is not there",
    "option-missing": "an option is needed, and is not given",
    "option-not-allowed": "an option is one that onefold sets itself, or that cannot be used here",
    "option-unknown": "there is no option of that name",
    "option-value": "the value of an option is none that it takes; the message says which it takes",
    "options-conflict": "two options that are given do not go together; the message says which to leave out",
    "package-missing": "an import or an option needs a package that is not installed; the message names the extra",
    "postgres-error": "Postgres reports an error whose meaning onefold does not know",
    "postgres-refuses": "Postgres refuses a statement, for a missing right or what is not there",
    "postgres-resources-exhausted": "Postgres has no free connection, memory or disk",
    "postgres-unavailable": "Postgres refuses for now (a deadlock, a shutdown); nothing took effect",
    "query-refused": "Spark does not run the query in that output mode; the message has Spark's reason",
    "query-writes": "the query of a PostgresSource writes, and its transaction only reads",
    "schema-missing": "a schema is needed, and is not given",
    "schema-type": "a column of the schema that was given has another type than what is read",
    "value-not-readable": "a value cannot be read as its column's type; the message names the column",
    "verify-columns-missing": "the rows or the table lack columns that are to be compared; the message names them",
    "sink-names": "a pipeline or a flow has no sink, or two of one name",
    "stream-unused": "a stream or a side output of a flow goes nowhere; the message says which",
    "update-by-values": "a sink tells rows of a group apart by what changes with the group, so older rows would stay",
    "update-into-appends": "rows that are written again when they change go to a sink that would keep each of them",
    "update-key-too-small": "a sink has one row of several groups, which would replace each other",
    "update-without-epoch": "a sink does not tell by the epoch which row of a group is the newest",
    "spark-job-failed": "Spark reports a failure that is not the job's own: an executor lost, a fetch that failed",
    "too-many-workers": "a flow has more workers than a sink takes writers, or than this process may have files open",
    "too-many-rejects": "Postgres refuses more rows of an epoch than rejects_max",
    "url-unreadable": "a URL is not written as its database or server needs it",
    "worker-died": "a Python worker of Spark died without an error",
    "workers-without-onefold": "Spark's Python workers cannot import onefold, or what the source or a sink needs",
}


@dataclass(frozen=True)
class Site:
    """Where an error is made: its code, its class in the tree, its message with placeholders."""

    code: str
    kind: str
    message: str
    module: str


def message_of(node: ast.expr) -> str:
    """The text of a message, with `{name}` for what is put in."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr():
            return "".join(map(message_of, node.values))
        case ast.FormattedValue(value=ast.Name(id=name) | ast.Attribute(attr=name)):
            return f"{{{name.strip('_')}}}"
        case ast.BinOp():
            return message_of(node.left) + message_of(node.right)
        case ast.IfExp():
            return message_of(node.body)
        case ast.Call(args=[first, *_]) if not isinstance(first, ast.Name):
            return message_of(first)
        case _:
            return "..."


@cache
def sites() -> list[Site]:
    paths = [path for portion in PORTIONS for path in (ROOT / portion / "onefold").rglob("*.py")]
    trees = {path: ast.parse(path.read_text()) for path in sorted(paths)}
    kinds = {name: name for name in TREE}  # of each class the one in the tree, as it crosses Spark
    nodes = [(path, node) for path, tree in trees.items() for node in ast.walk(tree)]
    classes = [node for _, node in nodes if isinstance(node, ast.ClassDef) and node.name not in TREE]
    for _ in range(2):  # a class of a class
        for node in classes:
            for base in node.bases:
                if isinstance(base, ast.Name) and base.id in kinds:
                    kinds[node.name] = kinds[base.id]
    made = []
    for path, node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds:
            code, message = node.args
            where = path.relative_to(ROOT)
            assert isinstance(code, ast.Constant), f"{where}:{node.lineno}: the code is no text, so no page can list it"
            made.append(Site(code.value, kinds[node.func.id], message_of(message), "/".join(where.parts[2:])))
    return made


def row(code: str, made: list[Site]) -> str:
    text = MEANINGS.get(code) or max(
        (site.message for site in made), key=lambda text: len(re.sub(r"\{\w*\}", "", text))
    )
    if len(text) > TEXT_MAX:
        text = f"{text[:TEXT_MAX].rsplit(' ', 1)[0]} ..."
    for sign in "|*<":
        text = text.replace(sign, f"\\{sign}")
    folders = sorted({"/".join(site.module.split("/")[:2]).removesuffix(".py") for site in made})
    where = ", ".join(f"`{name}`" for name in folders[:FOLDERS_MAX]) + (", ..." if folders[FOLDERS_MAX:] else "")
    return f"| `{code}` | {' '.join(text.split())} | {where} |"


def table() -> str:
    shown = [site for site in sites() if not site.code.startswith("simulat")]
    lines = []
    for kind in TREE:
        of_kind = sorted((site for site in shown if site.kind == kind), key=lambda site: site.code)
        if of_kind:
            lines += ["", f"## {kind}, exit code {TREE[kind].exit_code}", ""]
            lines += ["| code | what happened | raised in |", "| --- | --- | --- |"]
            lines += [row(code, list(made)) for code, made in groupby(of_kind, key=lambda site: site.code)]
    return "\n".join(lines)


@pytest.mark.xdist_group("errors_page")
def test_a_code_is_one_to_four_words_and_of_one_type() -> None:
    kinds = defaultdict[str, set[str]](set)
    for site in sites():
        assert CODE.fullmatch(site.code), site
        kinds[site.code].add(site.kind)
    assert {code: kind for code, kind in kinds.items() if len(kind) > 1} == {}


@pytest.mark.docs
@pytest.mark.xdist_group("errors_page")
def test_the_page_lists_the_codes_that_the_code_has() -> None:
    assert_renewed(ROOT / "docs/errors.md", "test_errors_page.py", table())


def test_a_text_ends_with_its_code() -> None:
    assert str(DataLoss("topic-recreated", "orders: made anew")) == "orders: made anew [topic-recreated]"
    assert str(DataLoss("x", "two rows:\n  1\n  2")) == "two rows:\n  1\n  2\n[x]", (
        "behind a table, and not in its last row"
    )


@pytest.mark.parametrize("through", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_keeps_its_code_through_pickle_and_copy(through: type) -> None:
    error = through(DataLoss("topic-recreated", "orders: made anew"))
    assert (type(error), error.code, error.message) == (DataLoss, "topic-recreated", "orders: made anew")


def test_a_reworded_error_keeps_its_class_and_its_code() -> None:
    class Busy(Retriable):
        pass

    error: OnefoldError = Busy("busy", "no answer").reworded("sink 'a': no answer")
    assert (type(error), str(error)) == (Busy, "sink 'a': no answer [busy]")
