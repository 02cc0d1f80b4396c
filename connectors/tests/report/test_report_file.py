"""A report's file: refused before the work where it cannot be written, and never there in part."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from harness.errors import raises
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.core import ConfigError
from onefold.report.report_file import ReportFile


def test_a_report_takes_the_place_of_an_older_one_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("older")
    file = ReportFile(path)
    assert path.read_text() == "older", "to try it changes nothing"
    assert file.write("<p>ö</p>") == f"The report: {path}"
    assert path.read_bytes() == "<p>ö</p>".encode()
    assert [*tmp_path.iterdir()] == [path]


def test_a_link_to_a_file_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link.html").symlink_to(tmp_path / "real.html")
    ReportFile(tmp_path / "link.html").write("new")
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "real.html").read_text() == "new"


@pytest.mark.parametrize("name", ["folder", "missing/report.html", "file/report.html", "fifo", "n" * 300])
def test_what_cannot_be_a_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "fifo")
    before = {*tmp_path.iterdir()}
    with raises(ConfigError, "report-not-writable", "Nothing was begun"):
        ReportFile(tmp_path / name)
    assert {*tmp_path.iterdir()} == before


def test_a_folder_that_was_emptied_since_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    file = ReportFile(folder / "report.html")
    folder.rmdir()
    file.write("page")
    assert (folder / "report.html").read_text() == "page"


def test_where_the_disk_takes_only_a_part_the_older_report_stays_and_the_reason_is_told(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("older")
    file = ReportFile(path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))  # bytes of a file of this process
    try:
        said = file.write("newer" * 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert said == f"the report {path} could not be written: File too large"
    assert path.read_text() == "older"
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("command", ["verify no.toml", "demo", "torture"])
def test_a_command_says_so_before_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.chdir(tmp_path)
    with raises(ConfigError, "report-not-writable", "missing/report.html"):
        CliRunner().invoke(app, [*command.split(), "--html", "missing/report.html"], catch_exceptions=False)
