from __future__ import annotations

import io
import socket
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress
from typer.testing import CliRunner

import onefold.local
from onefold.local import LocalServerError, PostgresServer, ServerStatus
from onefold.local.cli import CountColumn, app


def test_the_public_names_are_sorted_and_exist() -> None:
    assert onefold.local.__all__ == sorted(onefold.local.__all__)
    assert all(hasattr(onefold.local, name) for name in onefold.local.__all__)


def test_status_of_an_empty_folder_names_every_server(tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["status", "--dir", str(tmp_path / "x")])
    assert answer.exit_code == 0
    assert answer.stdout.count("never started here") == 4
    assert not (tmp_path / "x").exists()


def test_a_start_counts_nothing_until_there_is_something_to_count() -> None:
    with Progress(CountColumn(), console=Console(file=io.StringIO())) as progress:
        unknown, download = progress.add_task("kafka: starting", total=None), progress.add_task("", total=20)
        shown = [CountColumn().render(progress.tasks[task]).plain for task in (unknown, download)]
    assert shown == ["", " 0/20"]


def test_down_of_an_empty_folder_says_that_nothing_ran(tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["down", "--dir", str(tmp_path / "x")])
    assert answer.exit_code == 0
    assert "kafka was not running" in answer.stdout


def test_env_names_the_addresses_of_what_runs_for_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def status(server: PostgresServer) -> ServerStatus:
        return ServerStatus(server.name, True, 1, 5432, tmp_path, "runs", "postgresql://o@h/o?passfile=a b")

    monkeypatch.setattr(PostgresServer, "status", status)
    answer = CliRunner().invoke(app, ["env", "--dir", str(tmp_path)])
    assert (answer.exit_code, answer.stdout) == (0, "export POSTGRES='postgresql://o@h/o?passfile=a b'\n")


def test_env_of_servers_that_do_not_run_is_one_message_on_stderr(tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["env", "--dir", str(tmp_path)])
    assert (answer.exit_code, answer.stdout) == (1, "")
    assert "start some with onefold local up" in answer.stderr


def test_a_bad_start_is_one_message_on_stderr(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        answer = CliRunner().invoke(app, ["up", "postgres", "--dir", str(tmp_path), "--postgres-port", str(port)])
    assert answer.exit_code == 1
    assert f"port {port} for postgres is taken" in answer.stderr
    assert "Traceback" not in answer.output


def test_an_interrupted_up_is_not_an_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PostgresServer, "start", interrupted)
    answer = CliRunner().invoke(app, ["up", "postgres", "--dir", str(tmp_path)])
    assert answer.exit_code != 0
    assert not isinstance(answer.exception, LocalServerError)


def test_status_breaks_no_address_where_a_terminal_is_narrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"postgresql://o@h/o?passfile={'x' * 200}"
    log = tmp_path / f"{'y' * 90}.log"
    log.touch()
    monkeypatch.setattr(PostgresServer, "status", lambda _: ServerStatus("postgres", True, 1, 5432, log, "runs", url))
    answer = CliRunner().invoke(app, ["status", "postgres", "--dir", str(tmp_path)], env={"COLUMNS": "80"})
    assert answer.stdout == f"postgres runs: {url}\n  process 1, log {log}\n"
