"""An HBase sink as the command line describes it is the one that a program would make."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from onefold.cli.hbase_options import hbase_sink
from onefold.cli.main import app
from onefold.clients.hbase import HBaseSettings
from onefold.core import ConfigError
from onefold.sinks import HBaseSink

SERVERS = "thrift1:9090,thrift2:9090"
VERIFY = ["verify", "--pipeline=p", "--table=t", "--topic=t", "--bootstrap-servers=h:1", "--schema=id long"]
HBASE = [f"--hbase={SERVERS}", "--row-key=id", "--family=f"]


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({"family": "f"}, HBaseSink(SERVERS, "t", row_key="a, b", family="f")),
        (
            {
                "columns": "n = f:n integer",
                "salt": 16,
                "hbase_order": ["n"],
                "hbase_delete_when_true": "gone",
                "hbase_name": "s",
            },
            HBaseSink(
                SERVERS,
                "t",
                row_key="a, b",
                salt=16,
                columns={"n": "f:n integer"},
                order="n",
                delete_when_true="gone",
                name="s",
            ),
        ),
        (
            {"family": "f", "mode": "rolling", "merge": "n=sum, at = max", "transport": "framed", "info_port": 1},
            HBaseSink(
                HBaseSettings(SERVERS, transport="framed", info_port=1),
                "t",
                row_key="a, b",
                family="f",
                mode="rolling",
                merge={"n": "sum", "at": "max"},
            ),
        ),
        (
            {"family": "f", "mode": "incremental", "merge": "operator:add", "sequence": "m", "hbase_ledger": "l"},
            HBaseSink(
                SERVERS,
                "t",
                row_key="a, b",
                family="f",
                mode="incremental",
                merge=operator.add,
                sequence="m",
                ledger="l",
            ),
        ),
    ],
    ids=["row_key", "salted", "rolling", "incremental"],
)
def test_the_options_make_the_sink_that_they_name(given: dict[str, Any], made: HBaseSink) -> None:
    left_out = {"salt": None, "columns": "", "dense_sequence": False, "hbase_order": []}
    sink = hbase_sink(SERVERS, "t", row_key="a, b", **left_out | given)
    assert sink is not None
    assert sink.settings == made.settings


def test_a_merge_that_is_none_says_how_one_is_written() -> None:
    for merge in ("total", "no.such.module:merge", "operator:no_such_function"):
        with pytest.raises(ConfigError, match="on PYTHONPATH"):
            hbase_sink(SERVERS, "t", row_key="id", family="f", mode="rolling", merge=merge)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["doctor", "--pipeline=p", "--row-key=id"], "--row-key goes with --hbase"),
        (["doctor", "--pipeline=p", "--hbase-table=t"], "--hbase-table goes with --hbase"),
        (["doctor", "--pipeline=p", f"--hbase={SERVERS}", "--row-key=id"], "--hbase goes with the sink's table"),
        ([*VERIFY, f"--hbase={SERVERS}"], "with --row-key"),
        ([*VERIFY, *HBASE, "--salt=0"], "salt is the number of places, 2 to 256, not 0"),
        ([*VERIFY, "--postgres=postgresql://h/d", "--key=id", "--hash=0"], "--hash goes with --hbase"),
        ([*VERIFY, "--key=id"], "--postgres URL, or --hbase SERVERS"),
        ([*VERIFY, "--postgres=postgresql://h/d"], "--postgres goes with --key"),
        ([*VERIFY, "--postgres=postgresql://h/d", "--key=id", "--merge=n=sum"], "--merge goes with --hbase"),
        ([*VERIFY, "--postgres=postgresql://h/d", "--key=id", "--mode=rolling"], "--mode rolling goes with --hbase"),
        ([*VERIFY, *HBASE, "--mode=upsert"], "--mode upsert goes with --postgres"),
        ([*VERIFY, *HBASE, "--postgres=postgresql://h/d"], "one destination"),
        ([*VERIFY, *HBASE, "--delete-when-null=gone"], "--delete-when-null goes with a Postgres sink"),
        ([*VERIFY, *HBASE, "--letters=dead"], "--letters goes with --postgres"),
        ([*VERIFY, *HBASE], "the usual one, .onefold/p.db, is not in this directory"),
    ],
)
def test_options_that_do_not_go_together_are_refused_and_the_missing_one_named(
    command: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        CliRunner().invoke(app, command, catch_exceptions=False)
    assert says in str(refused.value)
