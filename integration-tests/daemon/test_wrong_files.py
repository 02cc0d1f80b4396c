"""docs/wrong-files.md: what commands say of files with one thing wrong in each, with an exit code and no traceback."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from harness.kafka.guarded import guarded_kafka
from harness.renewing import assert_renewed
from harness.wrong_files import DOCTOR, FILES, OFFLINE, ORDERS, RUN, Said, Wrong, page

from onefold.cli import entry

PAGE = Path(__file__).parents[2] / "docs" / "wrong-files.md"
NOWHERE = {"kafka": "kafka.example:9092", "topic": "orders", "postgres": "postgresql://shop@db.example/shop"}


class Commands:
    """Commands in this process, in a folder with the file and what it needs."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str]) -> None:
        self.folder, self._patch, self._captured = folder, patch, captured
        patch.chdir(folder)
        patch.delenv("SHOP_DATABASE", raising=False)

    def write(self, text: str, values: dict[str, str]) -> None:
        for name, other in FILES.items():
            (self.folder / name).write_text(other.format(**values) if name.endswith(".toml") else other)
        (self.folder / "orders.toml").write_text(text.format(**values))

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Its exit code, and what it wrote to stdout and to stderr."""
        self._captured.readouterr()
        self._patch.setattr(sys, "argv", ["onefold", *arguments])
        try:
            entry.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = self._captured.readouterr()
        assert "Traceback" not in out + err, err
        return code, out, err


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(tmp_path, monkeypatch, capfd)


def said_in_one_line(commands: Commands, wrong: Wrong, *command: str) -> Said:
    """What stderr says: one error, in one line."""
    code, out, err = commands.run(*command, *wrong.arguments)
    assert (out, err.count("\n")) == ("", 1), (wrong.what, out, err)
    assert err.endswith(f"[{wrong.code}]\n"), (wrong.what, err)
    assert code == 2
    return Said(wrong, code, err.strip(), {str(commands.folder): "/srv/onefold"})


def test_the_file_is_right_where_nothing_is_wrong(commands: Commands) -> None:
    commands.write(ORDERS, NOWHERE)
    assert commands.run("validate", "orders.toml")[0] == 0


def test_validate_says_what_is_wrong_in_a_file(commands: Commands) -> None:
    said = []
    for wrong in OFFLINE:
        commands.write(wrong.text(), NOWHERE)
        said.append(said_in_one_line(commands, wrong, "validate"))
    assert_renewed(PAGE, "integration-tests/daemon/test_wrong_files.py, validate", page(said))


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The addresses of a Kafka that wants logins at one of its two."""
    with guarded_kafka(tmp_path_factory.mktemp("guarded")) as kafka:
        login = {**kafka.settings}
        wrong = {**login, "sasl.password": "wrong"}
        yield {
            "kafka": kafka.servers,
            "kafka_tls": kafka.server.secure_servers,
            "topic": kafka.topic(),
            "login": _inline(login),
            "login_wrong": _inline(wrong),
        }


def _inline(settings: dict[str, str]) -> str:
    return ", ".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in settings.items())


@pytest.fixture
def values(servers: dict[str, str], postgres_url: str) -> dict[str, str]:
    return {
        **servers,
        "postgres": postgres_url,
        "wrong_password": postgres_url.replace("onefold@", "onefold:wrong@"),
        "as_role": postgres_url,
    }


@pytest.fixture
def role(postgres_url: str) -> Iterator[str]:
    name = f"r{uuid.uuid4().hex[:10]}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN".encode())
        yield name
        connection.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}".encode())


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_doctor_says_what_does_not_fit_the_servers(
    commands: Commands, values: dict[str, str], role: str, postgres_url: str
) -> None:
    values["as_role"] = postgres_url.replace("onefold@", f"{role}@")
    unlike = []
    for wrong in DOCTOR:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(b"DROP TABLE IF EXISTS orders; DROP SCHEMA IF EXISTS onefold_sinks CASCADE")
            connection.execute((wrong.sql.replace("{role}", role) or "SELECT 1").encode())
        commands.write(wrong.text(), values)
        code, out, err = commands.run("doctor", *wrong.arguments, "--json")
        problems = _problems(json.loads(out))
        if code != 1 or {found for found, _ in problems} != {wrong.code, wrong.also or wrong.code} or err:
            unlike.append((wrong.what, wrong.code, wrong.also, problems, err))
    assert not unlike, "\n".join(map(str, unlike))


def _problems(diagnosis: dict[str, list[dict[str, str]]]) -> list[tuple[str, str]]:
    sinks = [finding for sink in diagnosis["sinks"] for finding in sink["findings"]]  # type: ignore[index]
    found = [*diagnosis["runtime"], *diagnosis["store"], *diagnosis["source"], *sinks]
    return [(one["code"], one["says"]) for one in found if one["level"] == "problem"]


def test_run_says_what_pipelines_cannot_share(commands: Commands) -> None:
    said = []
    for wrong in RUN:
        commands.write(wrong.text(), NOWHERE)
        said.append(said_in_one_line(commands, wrong, "run"))
    assert_renewed(PAGE, "integration-tests/daemon/test_wrong_files.py, run", page(said))
