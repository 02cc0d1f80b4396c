"""What somebody reads who has installed onefold without the extra that he needs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from onefold.core.extras import _PACKAGES, extra_of, to_install

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
HIDE = """
import json, sys
from importlib.abc import MetaPathFinder

class Hidden(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if any(f"{name}.".startswith(f"{package}.") for package in hidden):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

hidden = set(json.loads(sys.argv.pop(1)))
sys.meta_path.insert(0, Hidden())
"""
NEEDS = {
    "from onefold.spark import EpochWriter": "spark",
    "from onefold.spark import register": "spark",
    "from onefold.sources import KafkaSource": "kafka",
    "from onefold.sinks import KafkaSink": "kafka",
    "from onefold.sources import PostgresSource": "postgres",
    "from onefold.sinks import PostgresSink": "postgres",
    "from onefold.sinks import SqlSink": "sql",
    "from onefold.sources import HBaseSource": "hbase",
    "from onefold.sinks import HBaseSink": "hbase",
    "from onefold.store.checkpoint_store import CheckpointStore as C; C('mariadb://shop@db/shop')": "mariadb",
    "from onefold.store.checkpoint_store import CheckpointStore as C; C('postgresql://shop@db/shop')": "postgres",
    "from onefold.flow import Flow; Flow('f').run(checkpoint='c')": "engine",
    "from onefold.flow.expressions import expression_of; expression_of('1', None, 'filter')": "expressions",
    "from onefold.local import KafkaServer": "local",
    "import os; os.environ.pop('ONEFOLD_CACHE', ''); from onefold.local import cache; cache.cache_directory()": "local",
}


def without(hidden: set[str], code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the code where these packages are not installed."""
    command = [sys.executable, "-c", HIDE + code, json.dumps(sorted(hidden)), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def packages(*extras: str) -> set[str]:
    return {package for extra in extras for package in _PACKAGES[extra]}


def test_whatever_is_imported_without_its_extra_the_error_names_it() -> None:
    code = """
said = {}
for line in json.loads(sys.argv[1]):
    try:
        exec(line)
    except Exception as error:
        said[line] = f"{type(error).__name__}: {error}"
print(json.dumps(said))
"""
    ended = without(packages(*_PACKAGES), code, json.dumps(list(NEEDS)))
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    for line, extra in NEEDS.items():
        missing = (
            rf"ConfigError: the package \w[\w.]* is not installed: {re.escape(to_install(extra))} \[package-missing\]"
        )
        assert re.fullmatch(missing, said.get(line, "no error")), (line, said.get(line))


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        ("Fenced('taken-over', 'another process runs it')", 73, "Fenced: another process runs it [taken-over]\n"),
        ("ValueError('mine')", 1, "Traceback"),
    ],
)
def test_a_script_has_its_exit_codes_without_any_extra(raised: str, code: int, said: str) -> None:
    script = f"""
from onefold.core import Fenced
from onefold.spark import exit_codes
with exit_codes():
    raise {raised}
"""
    ended = without(packages(*_PACKAGES), script)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert ended.stderr.startswith(said)


def test_exit_codes_imports_no_spark() -> None:
    script = (
        "from onefold.spark import exit_codes; print([name for name in sys.modules if name in json.loads(sys.argv[1])])"
    )
    assert without(set(), script, json.dumps(sorted(packages("spark")))).stdout == "[]\n"


def test_the_daemon_of_a_flow_on_the_engine_and_its_host_need_no_spark_and_no_driver() -> None:
    hidden = packages(*(set(_PACKAGES) - {"cli", "engine"}))
    script = (
        "from onefold.daemon import service; from onefold.daemon.api import serving;"
        " from onefold.daemon.hosting import hosts, process; print('there')"
    )
    assert without(hidden, script).stdout == "there\n"


COMMANDS = ("new", "schema", "validate", "doctor", "plan", "run", "verify", "reset", "txn", "local", "demo")
RUN = "from onefold.cli.entry import main; main()"


def test_the_command_without_its_extra_is_one_line() -> None:
    ended = without(packages(*_PACKAGES), RUN)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "ConfigError: the package typer is not installed: install onefold[cli]"
        " (in its checkout: pip install '.[cli]') [package-missing]\n"
    )


@pytest.mark.slow
def test_the_command_with_its_own_extra_alone_lists_everything_and_says_what_else_to_install() -> None:
    others = packages(*(set(_PACKAGES) - {"cli"}))
    listed = without(others, RUN, "--help").stdout
    assert all(re.search(rf"^  {name} ", listed, re.MULTILINE) for name in COMMANDS)
    for arguments, extra in (
        (["local", "status"], "local"),
        (["txn", "list", "--postgres", "postgresql://h/d"], "postgres"),
        (["demo"], "local"),
    ):
        ended = without(others, RUN, *arguments)
        assert ended.returncode == 2, ended.stderr
        assert ended.stderr.count("\n") == 1 and to_install(extra) in ended.stderr, ended.stderr


@pytest.mark.slow
def test_a_torture_in_containers_says_which_extra_it_needs_and_a_local_one_needs_none_of_it(tmp_path: Path) -> None:
    hidden = packages("testing")
    ended = without(hidden, RUN, "torture", "--servers", "containers", "--dir", str(tmp_path / "run"))
    assert ended.returncode == 2 and f"{to_install('testing')} [package-missing]" in ended.stderr, ended.stderr
    local = """
from contextlib import ExitStack
from pathlib import Path
from onefold.trials.torture import run_torture
from onefold.trials.torture.torture_servers import TortureServers
from onefold.trials.torture.torture_settings import TortureSettings
with ExitStack() as cleanup:
    TortureServers.of(TortureSettings(master="cluster"), Path("nowhere"), cleanup)
"""
    assert without(hidden, local).returncode == 0


@pytest.mark.slow
def test_files_are_written_and_checked_where_there_is_no_spark(tmp_path: Path) -> None:
    hidden = packages("spark")
    assert "pyspark" in hidden
    file, functions = tmp_path / "orders.toml", tmp_path / "functions.py"
    assert without(hidden, RUN, "new", str(file)).returncode == 0
    text = file.read_text().replace('filter = "amount > 0"', 'map_batches = "functions.py:clean"')
    assert "functions.py:clean" in text
    file.write_text(text)
    functions.write_text("def clean(batch):\n    yield batch\n")
    fine = without(hidden, RUN, "validate", str(file))
    assert (fine.returncode, fine.stderr) == (0, ""), fine.stderr
    file.write_text(text.replace("table =", "tabel ="))
    wrong = without(hidden, RUN, "validate", str(file))
    assert wrong.returncode == 2 and "did you mean 'table'?" in wrong.stderr
    assert json.loads(without(hidden, RUN, "schema").stdout)["type"] == "object"
    file.write_text(text)
    needs = without(hidden, RUN, "doctor", str(file))
    assert needs.returncode == 2 and f"{to_install('spark')} [package-missing]" in needs.stderr


def test_every_extra_is_known_with_the_packages_that_it_brings() -> None:
    assert {*_PACKAGES} == {*EXTRAS} - {"all", "dev"}
    assert extra_of("psycopg.conninfo") == "postgres"
    assert extra_of("google.protobuf.message") == extra_of("google") == "spark"
    assert [extra_of(name) for name in ("mine", "google.cloud", "psycopg2", "kaf", "")] == [None] * 5
