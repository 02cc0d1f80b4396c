"""Which Python Spark's workers run: a script's own, though nobody activated its environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from onefold.local import spark_environment

SCRIPT = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader
from onefold.sinks import SqlSink
from onefold.spark import EpochWriter, exit_codes, register

class Numbers(DataSource):
    @classmethod
    def name(cls): return "numbers"
    def schema(self): return "id long, python string"
    def reader(self, schema): return Reader()

class Reader(DataSourceReader):
    def read(self, partition):
        import onefold.spark.runtime.writers
        yield 1, sys.executable

with exit_codes():
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = session.config("spark.driver.host", "127.0.0.1").getOrCreate()
    register(spark)
    spark.dataSource.register(Numbers)
    pipeline = EpochWriter("numbers", sinks=[SqlSink(f"sqlite:///{Path('numbers.db').absolute()}", "numbers")])
    written = pipeline.write_batch(spark.read.format("numbers").load(), run="1")
    print("written:", written.rows, [row.python for row in spark.read.format("numbers").load().collect()])
"""


def run(tmp_path: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """The script, as `/path/.venv/bin/python job.py` runs it in a shell of its own."""
    (tmp_path / "job.py").write_text(SCRIPT)
    plain = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "JAVA_HOME": spark_environment()["JAVA_HOME"]}
    job = [sys.executable, "job.py"]
    return subprocess.run(job, cwd=tmp_path, env=plain | more, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.slow
def test_a_script_runs_without_an_activated_environment(tmp_path: Path) -> None:
    ended = run(tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert f"written: 1 ['{sys.executable}']" in ended.stdout


@pytest.mark.slow
def test_a_python_without_onefold_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')  # no site-packages: only what Spark itself adds
    bare.chmod(0o755)
    ended = run(tmp_path, PYSPARK_PYTHON=str(bare))
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.splitlines()[-1].endswith("[workers-without-onefold]")
    assert "set PYSPARK_PYTHON to a Python that has the same packages on every machine" in ended.stderr
    assert not (tmp_path / "numbers.db").exists()
