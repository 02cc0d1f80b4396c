"""docs/wrong-files.md: what commands say of files with one thing wrong in each, with an exit code and no traceback."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from harness.daemons import Start, rows, wait_for_rows, write
from harness.kafka.guarded import guarded_kafka
from harness.renewing import assert_renewed
from harness.support import Rig
from harness.typed_commands import TypedCommands
from harness.wrong_files import DOCTOR, FILES, OFFLINE, ORDERS, RUN, SPARK, TWICE, Said, Wrong, page

from onefold.core import ConfigError, Fenced

_PROBLEM = re.compile(r"^  PROBLEM (.+?\[([a-z-]+)\])$", re.MULTILINE | re.DOTALL)
PAGE = Path(__file__).parents[2] / "docs" / "wrong-files.md"
NOWHERE = {"kafka": "kafka.example:9092", "topic": "orders", "postgres": "postgresql://shop@db.example/shop"}


class Commands(TypedCommands):
    """Commands in a folder with the file and what it needs."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str]) -> None:
        super().__init__(folder, patch, captured)
        patch.delenv("SHOP_DATABASE", raising=False)

    def write(self, text: str, values: dict[str, str]) -> None:
        for name, other in FILES.items():
            (self.folder / name).write_text(other.format(**values) if name.endswith(".toml") else other)
        (self.folder / "orders.toml").write_text(text.format(**values))


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
    places = _places(commands.folder, values, role)
    said, unlike = [], []
    for wrong in DOCTOR:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(b"DROP TABLE IF EXISTS orders; DROP SCHEMA IF EXISTS onefold_sinks CASCADE")
            connection.execute((wrong.sql.replace("{role}", role) or "SELECT 1").encode())
        commands.write(wrong.text(), values)
        code, out, err = commands.run("doctor", *wrong.arguments)
        problems = _PROBLEM.findall(out)
        if code != 1 or {found for _, found in problems} != {wrong.code, wrong.also or wrong.code} or err:
            unlike.append((wrong.what, wrong.code, wrong.also, problems, err))
        texts = dict.fromkeys(text for text, _ in problems if not text.startswith("the same as above"))
        said.append(Said(wrong, code, "\0".join(texts), places))
    assert not unlike, "\n".join(map(str, unlike))
    assert_renewed(PAGE, "integration-tests/daemon/test_wrong_files.py, doctor", page(said))


def _places(folder: Path, values: dict[str, str], role: str) -> dict[str, str]:
    """What this run's addresses and names are on the page."""
    kafka, tls = values["kafka"].rpartition(":")[2], values["kafka_tls"].rpartition(":")[2]
    address, _, database = values["postgres"].partition("?")[0].rpartition("/")
    return {
        str(folder): "/srv/onefold",
        kafka: "9092",
        tls: "9093",
        address.rpartition(":")[2]: "5432",
        values["topic"]: "orders",
        database: "shop",
        role: "reader",
    }


def test_run_says_what_pipelines_cannot_share(commands: Commands) -> None:
    said = []
    for wrong in RUN:
        commands.write(wrong.text(), NOWHERE)
        said.append(said_in_one_line(commands, wrong, "run"))
    assert_renewed(PAGE, "integration-tests/daemon/test_wrong_files.py, run", page(said))


@pytest.mark.servers
@pytest.mark.slow
def test_run_says_what_keeps_a_start_from_going_on(rig: Rig, start: Start) -> None:
    said, options = [], ["--text-logs", "--listen", "none"]
    for wrong in SPARK:
        path = rig.directory / "orders.toml"
        path.write_text(wrong.text().format(**NOWHERE))
        ended = start(path, options=options)
        assert ended.wait() == ConfigError.exit_code, ended.text()
        text = ended.text()
        assert text.count("\n") == 1 and text.endswith(f"[{wrong.code}]\n"), text
        said.append(Said(wrong, ended.wait(), text[text.index("pipeline ") :].strip()))
    path = write(rig)
    rig.put(100)
    first = start(path, options=options)
    wait_for_rows(rig, first, 100)
    second = start(path)
    second.until(lambda: "generation 2" in second.text(), "another generation")
    rig.put(100)
    assert first.wait() == Fenced.exit_code, first.text()
    (line,) = (line for line in first.text().splitlines() if line.endswith(f"[{TWICE.code}]"))
    assert "Traceback" not in first.text()
    said.append(Said(TWICE, first.wait(), line[line.index("pipeline ") :]))
    wait_for_rows(rig, second, 200)
    second.stop()
    assert rows(rig) == sorted(rig.sent)
    assert_renewed(PAGE, "integration-tests/daemon/test_wrong_files.py, start", page(said))
