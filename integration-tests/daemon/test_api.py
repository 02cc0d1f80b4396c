"""A real daemon, operated over its API and by the commands that are its clients."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from harness.certificates import self_signed
from harness.daemon_stubs import Asking
from harness.daemons import Daemon, Start, is_whole, jvm_of, producing, rows, wait_for_rows, write
from harness.support import Rig, wait_until

from onefold.core import ConfigError, Fenced, Retriable

pytestmark = [pytest.mark.servers, pytest.mark.slow]
ONEFOLD = Path(sys.executable).with_name("onefold")


def command(daemon: Daemon, *words: str | Path, options: Sequence[str | Path] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ONEFOLD, *words, "--url", daemon.url, *options], capture_output=True, text=True, timeout=120, check=False
    )


def wait_for_state(ask: Asking, state: str, name: str = "orders") -> dict[str, Any]:
    def found() -> dict[str, Any]:
        return ask.get(f"/pipelines/{name}")  # type: ignore[no-any-return]

    wait_until(lambda: found()["state"] == state, f"it is {state}")
    return found()


def metric(ask: Asking, name: str, **labels: str) -> float | None:
    """The value of the metric whose labels have these among them."""
    for line in ask("GET", "/metrics").body.decode().splitlines():
        said = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
        if said and said[1] == name and all(f'{key}="{value}"' in (said[2] or "") for key, value in labels.items()):
            return float(said[3])
    return None


def test_a_daemon_is_operated_from_before_its_spark_is_up_until_it_is_stopped_and_is_exact(
    rig: Rig, start: Start
) -> None:
    rig.put(1000)
    path = write(rig)
    daemon = start(path)
    ask = Asking(daemon.url)
    assert ask("GET", "/health").status == 200
    assert (ask("GET", "/ready").status, ask.get("/pipelines/orders")["state"]) == (503, "starting")
    wait_for_rows(rig, daemon, 1000)
    found = wait_for_state(ask, "running")
    assert ask("GET", "/ready").status == 200
    assert (found["generation"], found["source"]["name"], found["sinks"][0]["kind"]) == (1, rig.topic, "postgres")
    wait_until(lambda: ask.get("/pipelines/orders")["behind"] == {"record": 0}, "no lag")
    wait_until(lambda: metric(ask, "onefold_rows_total", sink="rows") == 1000, "all rows are counted")
    wait_until(lambda: ask.get("/pipelines/orders")["counts"]["in_progress"] == 0, "the last epoch is complete")
    newest, *_ = ask.get("/pipelines/orders/epochs")["epochs"]
    assert (newest["state"], newest["sinks"][0]["state"]) == ("complete", "acknowledged")
    detail = ask.get(f"/pipelines/orders/epochs/{newest['epoch']}")
    assert sum(part["rows"] for part in detail["manifest"]) == newest["rows"] > 0
    assert metric(ask, "onefold_epoch_duration_seconds_count") == ask.get("/pipelines/orders")["counts"]["completed"]
    wait_until(lambda: metric(ask, "onefold_in_doubt", sink="rows") == 0, "a look after the last epoch")

    shown = command(daemon, "status", path)
    assert (shown.returncode, "running" in shown.stdout) == (0, True), shown.stdout + shown.stderr
    listed = json.loads(command(daemon, "epochs", "--json", options=["--limit", "1"]).stdout)
    assert listed == [newest]

    assert command(daemon, "pause").stdout == "orders: paused\n"
    rig.put(1000)
    wait_until(lambda: ask.get("/pipelines/orders")["behind"]["record"] >= 500, "the lag grows while it is paused")
    assert len(rows(rig)) <= 1500, "one epoch may have been under way"
    assert command(daemon, "resume", "orders").returncode == 0
    wait_for_rows(rig, daemon, 2000)

    with producing(rig):
        stopped = command(daemon, "stop", path)
        assert stopped.stdout.endswith("orders: stopped\n"), stopped.stderr
        assert is_whole(rig)
        held = len(rows(rig))
        time.sleep(2)
        assert len(rows(rig)) == held and daemon.process.poll() is None, "stopped, and the process stays"
        again = command(daemon, "stop")
        assert (again.returncode, again.stdout.splitlines()[-1]) == (0, "orders: stopped"), again.stderr
        refused = command(daemon, "pause")
        assert (refused.returncode, refused.stdout) == (ConfigError.exit_code, "") and "restart it" in refused.stderr
        for generation in (2, 3):
            restarted = command(daemon, "restart")
            assert restarted.stdout.endswith("orders: running\n"), restarted.stderr
            assert ask.get("/pipelines/orders")["generation"] == generation
            wait_for_rows(rig, daemon, len(rows(rig)) + 1)
    wait_for_rows(rig, daemon, len(rig.sent))
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.wait() == 0, daemon.text()
    assert rows(rig) == sorted(rig.sent)
    gone = command(daemon, "status")
    assert (gone.returncode, gone.stdout) == (Retriable.exit_code, "") and "[daemon-unreachable]" in gone.stderr


def test_a_stop_while_spark_starts_keeps_the_pipeline_from_starting_until_it_is_restarted(
    rig: Rig, start: Start
) -> None:
    rig.put(100)
    daemon = start(write(rig))
    ask = Asking(daemon.url)
    wait_until(lambda: jvm_of(daemon) is not None, "a JVM")
    assert ask.post("/pipelines/orders/stop").json()["state"] == "stopping"
    wait_for_state(ask, "stopped")
    assert rows(rig) == []
    assert ask.post("/pipelines/orders/restart").status == 202
    wait_for_rows(rig, daemon, 100)
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.wait() == 0, daemon.text()


def test_one_that_is_taken_over_ends_its_process_with_the_api_on_as_without(rig: Rig, start: Start) -> None:
    path = write(rig)
    with producing(rig):
        first = start(path)
        wait_for_rows(rig, first, 20)
        second = start(path)
        assert first.wait() == Fenced.exit_code, first.text()
        ask = Asking(second.url)
        found = wait_for_state(ask, "running")
        assert found["generation"] == 2 and found["latest"]["restore"]["generation"] == 2
        wait_until(lambda: metric(ask, "onefold_epoch_duration_seconds_count") or 0 >= 1, "an epoch of its own")
        told = metric(ask, "onefold_rows_total", sink="rows")
        assert told is not None and told <= len(rows(rig)) - 20, "rows of the first process are not counted"
    second.process.send_signal(signal.SIGTERM)
    assert second.wait() == 0, second.text()


def test_a_store_that_does_not_answer_is_a_503_in_time_and_the_pipeline_goes_on_after_it(
    rig: Rig, start: Start
) -> None:
    rig.put(100)
    daemon = start(write(rig))
    wait_for_rows(rig, daemon, 100)
    ask = Asking(daemon.url)
    with psycopg.connect(rig.url) as connection:
        (schema,) = connection.execute(
            "SELECT schemaname FROM pg_tables WHERE tablename = 'onefold_epochs'"
        ).fetchone() or ("",)
        connection.execute(f'LOCK TABLE "{schema}".onefold_epochs IN ACCESS EXCLUSIVE MODE'.encode())
        began_s = time.monotonic()
        answer = ask("GET", "/pipelines/orders/epochs")
        assert (answer.status, time.monotonic() - began_s < 15) == (503, True)
        assert answer.json()["code"] in ("postgres-unreachable", "database-unavailable", "store-unanswered")
        began_s = time.monotonic()
        assert (ask("GET", "/health").status, ask.get("/pipelines")[0]["name"]) == (200, "orders")
        assert time.monotonic() - began_s < 1
        wait_until(lambda: metric(ask, "onefold_store_up") == 0, "the store is told as down")
        connection.rollback()
    rig.put(100)
    wait_for_rows(rig, daemon, 200)
    wait_until(lambda: metric(ask, "onefold_store_up") == 1, "the store is told as up")
    assert ask.get("/pipelines/orders")["state"] == "running"


def test_another_address_wants_its_token_and_its_certificate_from_the_commands_too(
    rig: Rig, start: Start, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    certificate = self_signed(tmp_path, "api", "orders")
    secured = ("--token-file", token, "--tls-cert", certificate, "--tls-key", certificate.with_suffix(".key"))
    daemon = start(write(rig), options=["--listen", "0.0.0.0:0", *map(str, secured)])
    url = daemon.url.replace("0.0.0.0", "127.0.0.1")
    assert url.startswith("https://")

    def status(*options: str | Path) -> tuple[int, str]:
        asked = [ONEFOLD, "status", "--url", url, *options]
        ended = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
        return ended.returncode, ended.stdout + ended.stderr

    code, said = status("--token-file", token, "--ca", certificate)
    assert code == 0 and "orders" in said, said
    for options, expected in (
        (("--token-file", token), r"\[daemon-not-trusted\]"),
        (("--ca", certificate), r"\[token-(missing|wrong)\]"),  # of this user there may be one, of other daemons
    ):
        code, said = status(*options)
        assert code == ConfigError.exit_code and re.search(expected, said), said
    assert "0123456789abcdef" not in daemon.text() + Path(f"/proc/{daemon.process.pid}/cmdline").read_text()


def test_a_port_that_is_taken_or_an_open_address_ends_the_start_before_there_is_a_spark(rig: Rig, start: Start) -> None:
    path = write(rig)
    first = start(path)
    port = first.url.rpartition(":")[2]
    for options, code in (
        (["--listen", f"127.0.0.1:{port}"], "address-not-free"),
        (["--listen", "0.0.0.0:0"], "api-open"),
    ):
        began_s = time.monotonic()
        other = start(path, options=["--text-logs", *options])
        assert other.wait() == ConfigError.exit_code, other.text()
        assert f"[{code}]" in other.text() and "Traceback" not in other.text()
        assert time.monotonic() - began_s < 15, "no Spark was started"
    first.process.send_signal(signal.SIGTERM)
    assert first.wait() == 0, first.text()
