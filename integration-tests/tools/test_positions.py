"""`onefold positions`: positions move under the fence, forwards and backwards, and the rows are exact afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness.definitions import named, piped
from harness.errors import raises
from harness.support import CrashError, Rig, crash, failing_at, wait_until
from typer.testing import CliRunner, Result

from onefold.cli.main import app
from onefold.core import ConfigError, DataLoss, EpochState, Fenced
from onefold.sinks import PostgresSink
from onefold.store.checkpoint_store import CheckpointStore

pytestmark = [pytest.mark.servers, pytest.mark.slow]


def defined(rig: Rig, *sinks: PostgresSink, **more: Any) -> str:
    """What the command takes for the pipeline that the rig runs."""
    settings = {"checkpoint": rig.checkpoint(), "directory": str(rig.directory), "patience_s": 10.0, **more}
    source = settings.pop("source", rig.source())
    return named(piped("test", source=source, sinks=sinks or (rig.sink(),), **settings))


def positions(*arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(app, ["positions", *arguments], input=answer, catch_exceptions=False)


def moved(rig: Rig, *arguments: str, sink: PostgresSink | None = None) -> str:
    """The output of a move that nobody is asked about."""
    result = positions(defined(rig, sink or rig.sink()), *arguments, "--yes")
    assert result.exit_code == 0, result.output
    return result.output


def store_of(rig: Rig) -> CheckpointStore:
    return CheckpointStore(rig.sink().store_url() or "")


def verified(rig: Rig, *sinks: PostgresSink) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["verify", defined(rig, *sinks), "--key", "id", "--json"], catch_exceptions=False)
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["exact"] == (result.exit_code == 0)
    return found


def ids(rig: Rig) -> list[int]:
    return sorted(number for (number,) in rig.sql("SELECT id FROM rows"))


def offsets(rig: Rig) -> dict[str, int]:
    """Where the pipeline stands, by partition number."""
    store = store_of(rig)
    try:
        last = store.facts("test").last
    finally:
        store.close()
    assert last is not None
    return {name.rpartition("/")[2]: int(offset) for name, offset in last.range.end.items}


def test_what_is_passed_over_is_not_written_and_verify_says_how_much_that_is(rig: Rig) -> None:
    rig.put(40)
    rig.run(rig.pipeline())
    rig.put(40)
    topic = rig.topic
    shown = moved(rig, "--set", f"{topic}:0=15", "--set", f"{topic}:1=latest", "--why", "broken records")
    assert "moved, by epoch 2" in shown
    assert Path(f"{rig.checkpoint()}.until-epoch-1").is_dir() and not Path(rig.checkpoint()).exists()
    rig.run(rig.pipeline())
    passed = {*range(40, 60, 4), *range(41, 80, 4)}
    assert ids(rig) == [number for number in range(80) if number not in passed]
    found = verified(rig)["sinks"]["rows"]
    assert found["exact"], found
    notes = found["comparison"]["notes"]
    assert any("15 records were passed over on purpose" in note and "epoch 2" in note for note in notes), notes
    shown = positions(defined(rig)).output
    assert "moved by epoch 2" in shown and "broken records" in shown
    assert f"{topic}/0" in shown and "0 to 20" in shown


def test_an_append_is_not_moved_back_until_its_table_is_empty_and_then_begins_there(rig: Rig) -> None:
    rig.put(40)
    rig.run(rig.pipeline())
    with raises(ConfigError, "move-would-double"):
        positions(defined(rig), "--reset", "--yes", "--take-over")
    assert Path(rig.checkpoint()).is_dir()
    rig.sql("TRUNCATE rows")
    assert "what it writes to is empty" in moved(rig, "--set", f"{rig.topic}:2=4", "--set", f"{rig.topic}:3=0")
    rig.put(40)
    rig.run(rig.pipeline())
    assert ids(rig) == sorted([*range(18, 40, 4), *range(3, 40, 4), *range(40, 80)])
    found = verified(rig)
    assert found["exact"], found


def test_an_upsert_takes_records_again_and_is_exact_before_and_after_they_have_all_come(rig: Rig) -> None:
    sink = rig.sink("staged", mode="upsert", key=["id"], order=["n"])
    rig.put(40)
    rig.run(rig.pipeline(sink))
    assert "records that come again change nothing" in moved(rig, "--reset", sink=sink)
    assert set(offsets(rig).values()) == {0}
    found = verified(rig, sink)
    assert found["exact"] and found["sinks"]["rows"]["comparison"]["expected"] == 40
    outcomes = rig.run(rig.pipeline(sink))
    assert [outcome.replayed for outcome in outcomes] == [False]
    assert ids(rig) == list(range(40))
    assert verified(rig, sink)["exact"]


@pytest.mark.parametrize("point", ["after:Anchor", "after:SetAside", "before:Decide", "after:Decide"])
def test_a_move_that_dies_leaves_a_pipeline_that_starts_by_itself(
    rig: Rig, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.put(40)
    rig.run(rig.pipeline())
    rig.put(20)
    with monkeypatch.context() as patched:
        failing_at(patched, point, crash)
        with pytest.raises(CrashError):
            positions(defined(rig), "--set", "latest", "--yes", "--take-over")
    rig.run(rig.pipeline())
    is_moved = point == "after:Decide"
    assert ids(rig) == list(range(40 if is_moved else 60))
    rig.put(20)
    rig.run(rig.pipeline())
    assert len(ids(rig)) == (60 if is_moved else 80)
    assert verified(rig)["exact"]


def test_a_driver_that_lives_is_refused_and_with_take_over_fenced(rig: Rig) -> None:
    rig.put(40)
    rig.run(rig.pipeline())
    living = rig.pipeline()
    query = living.start(rig.spark, rig.checkpoint())
    living.pause()
    rig.put(40)
    wait_until(lambda: (Path(rig.checkpoint()) / "offsets" / "1").exists(), "a batch that waits")
    with raises(ConfigError, "pipeline-may-run"):
        positions(defined(rig), "--set", "latest", "--yes")
    assert "moved, by epoch 2" in moved(rig, "--set", "latest", "--take-over")
    living.resume()
    with pytest.raises(Fenced):
        living.await_termination(query, 60)
    living.close()
    rig.put(4)
    rig.run(rig.pipeline(), checkpoint="another")
    assert ids(rig) == [*range(40), *range(80, 84)]


def test_nothing_is_moved_before_the_answer_nor_out_of_the_topic_nor_under_state(rig: Rig) -> None:
    rig.put(40)
    rig.run(rig.pipeline())
    with raises(ConfigError, "position-outside-partition"):
        positions(defined(rig), "--set", f"{rig.topic}:0=11", "--yes", "--take-over")
    with raises(ConfigError, "partition-unknown"):
        positions(defined(rig), "--set", f"{rig.topic}:9=1", "--yes", "--take-over")
    with raises(ConfigError, "move-to-itself"):
        positions(defined(rig), "--set", "latest", "--yes", "--take-over")
    rig.put(4)
    asked = positions(defined(rig), "--set", "latest", "--take-over", answer="n\n")
    assert asked.exit_code == 1 and "records passed over" in asked.output
    (Path(rig.checkpoint()) / "state" / "0").mkdir(parents=True)
    with raises(ConfigError, "state-not-movable"):
        positions(defined(rig), "--set", "latest", "--yes", "--take-over")
    store = store_of(rig)
    try:
        assert [record.state for record in store.history("test")] == [EpochState.COMPLETE]
    finally:
        store.close()


def test_a_checkpoint_that_was_not_set_aside_is_refused_and_nothing_is_written(rig: Rig) -> None:
    rig.put(40)
    rig.run(rig.pipeline())
    rig.put(40)
    moved(rig, "--set", "latest")
    Path(f"{rig.checkpoint()}.until-epoch-1").rename(rig.checkpoint())
    with pytest.raises(Exception, match="covers records that are written already"):
        rig.run(rig.pipeline())
    assert ids(rig) == list(range(40))


def test_a_table_that_was_dropped_is_no_proof_that_it_was_rewound(rig: Rig) -> None:
    rig.put(4)
    rig.run(rig.pipeline())
    rig.sql("DROP TABLE rows")
    with pytest.raises((ConfigError, DataLoss), match=r"Nothing was"):
        positions(defined(rig), "--reset", "--yes", "--take-over")
