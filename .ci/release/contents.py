"""What is wrong with the artifacts: held against git's files, the checkout's bytes, and the rules for metadata."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

from building import ROOT, Artifacts, run
from packaging.metadata import Metadata
from packaging.utils import parse_sdist_filename, parse_wheel_filename

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION: str = PROJECT["version"]
_PORTIONS = ("core", "clients", "sources", "sinks", "connectors")
_BESIDE = ("hatch_build.py", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore")
_COMPILED = "onefold/sources/native/_native.so"
_INFO = f"onefold-{VERSION}.dist-info"
_INFO_FILES = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")


def faults(artifacts: Artifacts) -> list[str]:
    """A line for each; none is as it should be."""
    sdist, platform, pure = unpacked(artifacts.sdist), unpacked(artifacts.platform), unpacked(artifacts.pure)
    found = [
        *_against_git(artifacts.sdist.name, sdist, {path: path for path in (*_tracked(), *_BESIDE)}, {"PKG-INFO"}),
        *of_a_wheel(artifacts.pure.name, pure, compiled=False),
        *of_a_wheel(artifacts.platform.name, platform, compiled=True),
        *of_the_metadata(sdist.get("PKG-INFO", b"")),
    ]
    if not sdist.get("PKG-INFO") == platform.get(f"{_INFO}/METADATA") == pure.get(f"{_INFO}/METADATA"):
        found.append("the metadata of source distribution and wheels differ")
    if parse_sdist_filename(artifacts.sdist.name)[1].public != VERSION:
        found.append(f"{artifacts.sdist.name} is not of version {VERSION}")
    if not any(line.startswith(f"## {VERSION} ") for line in (ROOT / "CHANGELOG.md").read_text().splitlines()):
        found.append(f"CHANGELOG.md has no heading for {VERSION}")
    return found


def unpacked(path: Path) -> dict[str, bytes]:
    """Each file by its path; without the folder that everything in a source distribution lies in."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    with tarfile.open(path) as archive:
        members = [member for member in archive if member.isfile()]
        return {m.name.partition("/")[2]: f.read() for m in members if (f := archive.extractfile(m)) is not None}


def _tracked() -> list[str]:
    """Every file of the package that git has."""
    return run(["git", "ls-files", *(f"{portion}/onefold" for portion in _PORTIONS)], ROOT).splitlines()


def _against_git(name: str, files: dict[str, bytes], sources: dict[str, str], made: set[str]) -> Iterator[str]:
    """`sources`: path in the checkout by path in the artifact; `made`: what the build adds."""
    for path in sorted((sources.keys() | made) - files.keys()):
        yield f"{name} lacks {path}"
    for path in sorted(files.keys() - sources.keys() - made):
        yield f"{name} has {path}, which is not in git or should not be shipped"
    for path in sorted(sources.keys() & files.keys()):
        if files[path] != (ROOT / sources[path]).read_bytes():
            yield f"{name} has another {path} than the checkout"


def of_a_wheel(name: str, files: dict[str, bytes], *, compiled: bool) -> Iterator[str]:
    sources = {path.partition("/")[2]: path for path in _tracked()}
    made = {f"{_INFO}/{path}" for path in _INFO_FILES} | ({_COMPILED} if compiled else set())
    yield from _against_git(name, files, sources, made)
    for part in sorted({path.split("/")[1] for path in sources}):
        if f"onefold/{part}/py.typed" not in files:
            yield f"{name} lacks onefold/{part}/py.typed: a type checker sees none of onefold.{part}"
    if files.get(f"{_INFO}/licenses/LICENSE") != (ROOT / "LICENSE").read_bytes():
        yield f"{name} has another LICENSE than the checkout"
    for script, target in PROJECT["scripts"].items():
        if f"{script} = {target}" not in files.get(f"{_INFO}/entry_points.txt", b"").decode():
            yield f"{name} lacks the command {script}"
    for path, digest, _ in csv.reader(io.StringIO(files.get(f"{_INFO}/RECORD", b"").decode())):
        actual = base64.urlsafe_b64encode(hashlib.sha256(files.get(path, b"")).digest()).rstrip(b"=").decode()
        if path != f"{_INFO}/RECORD" and digest != f"sha256={actual}":
            yield f"{name} has another {path} than its RECORD says"
    _, version, _, tags = parse_wheel_filename(name)
    if version.public != VERSION:
        yield f"{name} is not of version {VERSION}"
    if {tag.platform == "any" for tag in tags} != {not compiled} or any(t.platform.startswith("linux_") for t in tags):
        yield f"{name} has a platform that is not {'one of manylinux' if compiled else 'any'}"
    said = {line[5:] for line in files.get(f"{_INFO}/WHEEL", b"").decode().splitlines() if line.startswith("Tag: ")}
    if said != {str(tag) for tag in tags}:
        yield f"{name} says inside that it is for {', '.join(sorted(said))}"


def of_the_metadata(text: bytes) -> Iterator[str]:
    try:
        metadata = Metadata.from_email(text, validate=True)
    except ExceptionGroup as group:
        yield from (f"metadata: {error}" for error in group.exceptions)
        return
    for field, is_, should in (
        ("Name", metadata.name, PROJECT["name"]),
        ("Version", str(metadata.version), VERSION),
        ("License-Expression", metadata.license_expression, PROJECT["license"]),
        ("License-File", metadata.license_files, PROJECT["license-files"]),
        ("Requires-Python", str(metadata.requires_python), PROJECT["requires-python"]),
        ("Description-Content-Type", metadata.description_content_type, "text/markdown"),
        ("Provides-Extra", sorted(metadata.provides_extra or []), sorted(PROJECT["optional-dependencies"])),
    ):
        if is_ != should:
            yield f"metadata: {field} is {is_!r}, and pyproject.toml has {should!r}"
