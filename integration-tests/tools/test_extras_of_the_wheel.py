"""Every extra alone, installed from the wheel into an environment of its own: the packages come from an index."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKS = {  # of each extra alone, what is there with it
    "spark": "from onefold.spark import EpochWriter, exit_codes, register",
    "kafka": "from onefold.sources import KafkaSource; from onefold.sinks import KafkaSink\n"
    "KafkaSource('t', bootstrap_servers='h:1'); KafkaSink('t', bootstrap_servers='h:1')",
    "avro": "from onefold.sources import KafkaSource\n"
    "KafkaSource('t', bootstrap_servers='h:1', format='avro', schema_registry='http://h')",
    "postgres": "from onefold.sources import PostgresSource; from onefold.sinks import PostgresSink\n"
    "PostgresSource('postgresql://h/d', 't'); PostgresSink('postgresql://h/d', 't')",
    "hbase": "from onefold.sources import HBaseSource; from onefold.sinks import HBaseSink\n"
    "HBaseSink('h:1', 't', row_key='id', family='f')",
    "mariadb": "from onefold.store.checkpoint_store import CheckpointStore; CheckpointStore('mariadb://h/d')",
    "sql": "from onefold.sinks import SqlSink; SqlSink('sqlite:////d.db', 't')",
    "cli": "import sys; sys.argv = ['onefold', '--version']; from onefold.cli.entry import main; main()",
    "local": "import sys; sys.argv = ['onefold', 'local', 'status']; from onefold.cli.entry import main; main()",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=300)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.soak
@pytest.mark.parametrize("extra", WORKS)
def test_an_extra_alone_installs_what_it_promises(extra: str, wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    install = [python, "-m", "pip", "install", "--quiet", f"onefold[{extra}] @ {wheel.as_uri()}"]
    subprocess.run(install, check=True, timeout=900)
    ran = subprocess.run(
        [python, "-c", WORKS[extra]], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
