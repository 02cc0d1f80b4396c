"""What a real daemon tells of a flow's epochs as checkpoints: who has not acknowledged, what was given up and kept."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from harness.daemon_stubs import Asking
from harness.daemons import ONEFOLD, Start

pytestmark = [pytest.mark.servers, pytest.mark.slow]

FLOW = """\
import time
from pathlib import Path
from onefold.flow import Flow, StatefulProcessor, sum_
from onefold.sinks import PostgresSink
from onefold.sources import FileSource


class Held(StatefulProcessor):
    def init(self, handle):
        self.seen = handle.getListState("seen", "id long")

    def handleInputRows(self, key, rows, timerValues):
        while Path({root!r}, "hold").exists():
            time.sleep(0.05)
        if Path({root!r}, "fail").exists():
            Path({root!r}, "fail").unlink()
            raise ValueError("struck")
        for row in rows:
            self.seen.appendValue((row.id,))
            yield (*key, row.id)


def flow(settings):
    made = Flow("ids")
    source = FileSource({root!r} + "/in", format="json", schema="k long, id long", settle_s=0.0)
    held = made.source(source, uid="in").key_by("k").process(Held(), uid="held", schema="k long, id long")
    totals = held.key_by("k").aggregate(uid="totals", total=sum_("id"))
    totals.sink(PostgresSink(settings["url"], "totals", mode="upsert", key="k", order="onefold_epoch"))
    return made
"""
SPARK_FILE = """\
flow = "jobs/held.py:flow"
[settings]
url = "${DATABASE}"
[spark]
master = "local[2]"
"""
FILE = """\
flow = "jobs/held.py:flow"
runtime = "engine"
[engine]
workers = 2
[settings]
url = "${DATABASE}"
"""


def test_an_epoch_that_is_stuck_names_the_operator_one_that_is_given_up_counts_and_the_store_knows_what_was_kept(
    tmp_path: Path, postgres_url: str, start: Start
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "held.py").write_text(FLOW.format(root=str(tmp_path)))
    file = tmp_path / "ids.toml"
    file.write_text(FILE)

    def put(ids: range) -> None:
        (tmp_path / "in" / f"{ids.start}.json").write_text(
            "".join(json.dumps({"k": i % 7, "id": i}) + "\n" for i in ids)
        )

    put(range(50))
    daemon = start(file, DATABASE=postgres_url)
    ask = Asking(daemon.url)

    def pipeline() -> Any:
        return ask.get("/pipelines/ids")

    daemon.until(lambda: pipeline()["epoch"] == 1, "the first epoch")
    first = ask.get("/pipelines/ids/epochs/1")
    assert (first["kind"], first["why"]) == ("rows", None) and first["bytes"] > 0
    assert first["stored_bytes"] > 0 and first["state_bytes"] >= first["stored_bytes"]
    names = [of["names"] for of in first["operators"]]
    assert [each[0] for each in names] == ["in", "held", "totals"], names
    subtasks = [each for of in first["operators"] for each in of["subtasks"]]
    assert len(subtasks) == 6 and None not in subtasks
    assert sum(each["stored_bytes"] for each in subtasks) == first["stored_bytes"]
    assert all(each["prepared_s"] > 0 for each in first["operators"][2]["subtasks"])
    assert pipeline()["checkpoint"] and pipeline()["running"] is None

    (tmp_path / "hold").touch()
    put(range(50, 100))

    def is_held() -> bool:
        running = pipeline()["running"]
        return running is not None and "at work in held" in "".join(running["waits_for"])

    daemon.until(is_held, "an epoch that is held")
    running = pipeline()["running"]
    assert (running["epoch"], running["step"]) == (2, "run")
    assert running["waits_for"][0] in {f"held in worker {worker}, at work in held" for worker in range(2)}
    assert None in running["operators"][1]["subtasks"] and None in running["operators"][2]["subtasks"]

    def said() -> str:
        return subprocess.check_output([ONEFOLD, "status", "--url", daemon.url], text=True)

    daemon.until(lambda: "ids: epoch 2 runs for" in said(), "a line of onefold status", 60)
    assert "(run), and waits for held in worker" in said()

    (tmp_path / "fail").touch()
    (tmp_path / "hold").unlink()
    daemon.until(lambda: pipeline()["epoch"] == 2, "the epoch that ran again")
    found = pipeline()
    assert (found["counts"]["failed"], found["counts"]["completed"], found["restarts"]) == (1, 2, 1)
    failed = found["latest"]["failed"]
    assert (failed["epoch"], failed["state"]) == (2, "given_up") and "struck" in failed["error"]
    kept = ask.get("/pipelines/ids/epochs")["epochs"]
    daemon.stop()

    again = start(file, DATABASE=postgres_url)
    ask = Asking(again.url)
    again.until(lambda: pipeline()["epoch"] == 2 and pipeline()["state"] == "running", "a start")
    seen = ask.get("/pipelines/ids/epochs")["epochs"]
    assert [each["stored_bytes"] for each in seen] == [each["stored_bytes"] for each in kept]
    assert [(each["state_bytes"], each["steps"]) for each in seen] == [(None, None)] * 2
    assert all(each["duration_s"] >= each["commit_s"] for each in seen)
    assert ask.get("/pipelines/ids/epochs/2")["operators"] == []
    again.stop()


def test_on_spark_its_steps_and_the_size_of_its_state_are_told_and_nothing_of_subtasks(
    tmp_path: Path, postgres_url: str, start: Start
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "held.py").write_text(FLOW.format(root=str(tmp_path)))
    (tmp_path / "ids.toml").write_text(SPARK_FILE)
    daemon = start(tmp_path / "ids.toml", DATABASE=postgres_url)
    ask = Asking(daemon.url)
    for number in range(2):  # what Spark says may be of the batch before
        (tmp_path / "in" / f"{number}.json").write_text(json.dumps({"k": number, "id": number}) + "\n")
        daemon.until(lambda: ask.get("/pipelines/ids")["epoch"] == number + 1, "an epoch")  # noqa: B023
    daemon.until(lambda: (ask.get("/pipelines/ids")["spark_state"] or {}).get("bytes", 0) > 0, "the size of its state")
    found = ask.get("/pipelines/ids")
    assert found["spark_state"]["rows"] > 0 and found["running"] is None
    one = ask.get("/pipelines/ids/epochs/2")
    assert (one["operators"], one["state_bytes"], one["stored_bytes"]) == ([], None, 0)
    assert one["steps"]["prepare_s"] is None and one["steps"]["run_s"] > 0
    daemon.stop()
