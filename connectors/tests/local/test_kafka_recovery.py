from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness.errors import raises

from onefold.local import LocalServerError
from onefold.local.kafka.recovery import fence_earlier_life, was_killed

# What a controller writes: first what earlier lives had written, read again, then what it does itself.
HISTORY = "Replayed BrokerRegistrationChangeRecord modifying broker 1: (brokerId=1, fenced=1, inControlledShutdown=0)"
ACTIVE = "[QuorumController id=1] Performing controller activation. (QuorumController)"
FENCING = "[QuorumController id=1] Fencing broker 1 at epoch 11 because its session has timed out."


def controller(folder: Path, *lines: str) -> list[str | Path]:
    script = folder / "controller"
    script.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines) + "exec sleep 60\n")
    script.chmod(0o755)
    return [script]


def test_data_without_the_mark_of_an_orderly_end_are_of_a_killed_broker(tmp_path: Path) -> None:
    assert not was_killed(tmp_path)
    (tmp_path / "meta.properties").write_text("")
    assert was_killed(tmp_path)
    (tmp_path / ".kafka_cleanshutdown").write_text("")
    assert not was_killed(tmp_path)


@pytest.mark.slow
def test_the_controller_ends_when_it_has_fenced_the_earlier_life(tmp_path: Path) -> None:
    command = controller(tmp_path, HISTORY, ACTIVE, FENCING, HISTORY)
    fence_earlier_life(command, home=tmp_path, log=tmp_path / "log", port=1)
    assert not (tmp_path / "recovery.json").exists()


def test_a_fence_that_is_only_read_again_is_not_taken_for_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold.local.kafka.recovery._ACTIVE_S_MAX", 0.3)
    with raises(LocalServerError, "kafka-recovery-failed"):
        fence_earlier_life(controller(tmp_path, HISTORY), home=tmp_path, log=tmp_path / "log", port=1)


@pytest.mark.slow
def test_a_controller_that_was_left_over_is_ended_first(tmp_path: Path) -> None:
    (tmp_path / "recovery.json").write_text(json.dumps({"port": 1, "log": "x", "process": {"pid": 1, "born": "no"}}))
    command = controller(tmp_path, ACTIVE, FENCING, HISTORY)
    fence_earlier_life(command, home=tmp_path, log=tmp_path / "log", port=1)  # and process 1, not ours, lives on
