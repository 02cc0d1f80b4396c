"""What is said where MariaDB is neither installed nor to be had."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.errors import raises

from onefold.local import LocalServerError
from onefold.local.mariadb import binaries


@pytest.fixture(autouse=True)
def a_machine_without_mariadb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "_SERVERS", ())
    monkeypatch.setattr(binaries, "SYSTEM_CACHE", tmp_path / "cache")
    monkeypatch.setenv("ONEFOLD_CACHE", str(tmp_path / "cache"))


def test_without_apt_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with raises(LocalServerError, "mariadb-missing"):
        binaries.mariadb_binaries()


def test_a_fetch_that_fails_leaves_nothing_and_says_what_apt_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("apt-get", "apt-cache", "dpkg"):
        (tools / name).write_text("#!/bin/sh\necho no network >&2\nexit 100\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    with raises(LocalServerError, "mariadb-missing"):
        binaries.mariadb_binaries()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["mariadb.lock"]
