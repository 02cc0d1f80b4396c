"""One pipeline's file on either runtime: several sources, steps, a flow of the file's settings; killed, and exact."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from harness.daemons import ORDERS_FILE, TOTALS_FILE, TOTALS_FLOW, Start, is_whole, rows, wait_for_rows
from harness.definitions import piped
from harness.support import Rig

from onefold.core.source import Source
from onefold.pipeline import Engine, Pipeline, Spark
from onefold.sources import FileSource

pytestmark = [pytest.mark.servers, pytest.mark.slow]
TABLES = """\
[engine]
workers = 2

[[sources]]
kind = "files"
path = "{place}/in"
format = "json"
schema = "id long, n long"
settle_s = 0.1

[[steps]]
filter = "n <> 0"
[[steps]]
with_columns = {{ n = "n * 2" }}
[[steps]]
map_batches = "functions.py:plus_one"
[[steps]]
select = ["id", "n"]
"""
FUNCTIONS = """\
import pyarrow.compute as pc

def plus_one(batch):
    yield batch.set_column(1, "n", pc.add(batch["n"], 1))
"""
RUNTIMES = ["engine", "spark"]


def written(rig: Rig, text: str, runtime: str, **more: str) -> Path:
    path = rig.directory / "orders.toml"
    path.write_text(text.format(runtime=runtime, topic=rig.topic, servers=rig.servers, url=rig.url, **more))
    return path


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_several_sources_and_steps_of_a_file_are_exact_on_either_runtime_though_it_is_killed(
    rig: Rig, start: Start, runtime: str
) -> None:
    (rig.directory / "in").mkdir()
    (rig.directory / "functions.py").write_text(FUNCTIONS)
    tables = TABLES.format(place=rig.directory)
    path = written(rig, ORDERS_FILE, runtime, source="max_offsets_per_trigger = 200", tables=tables)

    def put(count: int, file: str) -> None:
        rig.put(count)
        rig.put_values([b"no JSON"])
        lines = "".join(f'{{"id":{-id - 1},"n":{n}}}\n' for id, n in rig.sent[-count:])
        (rig.directory / "in" / file).write_text(lines)

    def wanted() -> list[tuple[int, int]]:
        both = [*rig.sent, *((-id - 1, n) for id, n in rig.sent)]
        return sorted((id, 2 * n + 1) for id, n in both if n)

    put(600, "1.json")
    killed = start(path)
    wait_for_rows(rig, killed, 1)
    killed.kill()
    put(600, "2.json")
    last = start(path)
    wait_for_rows(rig, last, len(wanted()))
    last.process.send_signal(signal.SIGTERM)
    assert last.wait() == 0, last.text()
    assert rows(rig) == wanted() and is_whole(rig)
    assert rig.sql("SELECT value FROM dead") == [(b"no JSON",)] * 2


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_flow_with_state_that_a_file_names_and_gives_its_settings_is_exact_though_it_is_killed(
    rig: Rig, start: Start, runtime: str
) -> None:
    (rig.directory / "jobs").mkdir()
    (rig.directory / "jobs" / "totals.py").write_text(TOTALS_FLOW)
    path = written(rig, TOTALS_FILE, runtime)

    def found() -> int:
        is_there = rig.sql("SELECT to_regclass('totals') IS NOT NULL")[0][0]
        return int(rig.sql("SELECT coalesce(sum(orders), 0) FROM totals")[0][0]) if is_there else 0

    rig.put(1000)
    killed = start(path, DATABASE=rig.url)
    killed.until(lambda: found() > 0, "a first epoch")
    killed.kill()
    rig.put(500)
    last = start(path, DATABASE=rig.url)
    last.until(lambda: found() >= len(rig.sent), "all rows")
    last.process.send_signal(signal.SIGTERM)
    assert last.wait() == 0, last.text()
    wanted: dict[int, tuple[int, int]] = {}
    for id, n in rig.sent:
        orders, ids = wanted.get(n, (0, 0))
        wanted[n] = orders + 1, ids + id
    totals = rig.sql("SELECT n, orders, ids FROM totals ORDER BY n")
    assert [tuple(map(int, row)) for row in totals] == [(n, *wanted[n]) for n in sorted(wanted)]


def pipeline(rig: Rig, runtime: str, source: Source) -> Pipeline:
    on = Engine() if runtime == "engine" else Spark(session=rig.spark, available_now=True)
    return piped("p", source=source, sinks=[rig.sink()], runtime=on, directory=str(rig.directory))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_pipeline_runs_to_the_end_of_its_sources_on_either_runtime(rig: Rig, runtime: str) -> None:
    folder = rig.directory / "in"
    folder.mkdir()
    (folder / "1.json").write_text("".join(f'{{"id":{n},"n":{n * n}}}\n' for n in range(100)))
    source = FileSource(str(folder), format="json", schema="id long, n long", settle_s=0.0).bounded()
    for _ in range(2):
        pipeline(rig, runtime, source).run()
        assert rig.rows() == [(n, n * n) for n in range(100)]
    rig.assert_nothing_in_doubt()
    assert pipeline(rig, runtime, source).recover().generation.number == 3
