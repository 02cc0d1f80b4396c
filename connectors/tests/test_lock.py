"""What development installs is what the lock names, file by file; and what an audit of it says."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PINNED = re.compile(r"[A-Za-z0-9._-]+==[^\s;]+( ;[^\\]+)? \\\n(    --hash=sha256:[0-9a-f]{64}( \\)?\n)+")


@pytest.mark.parametrize("lock", ["requirements.lock", ".ci/tools.lock", ".ci/site.lock"])
def test_every_file_of_the_lock_is_known_by_its_hash_and_no_index_is_named(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert re.sub(r"^#.*", "", PINNED.sub("", text), flags=re.MULTILINE).strip() == ""
    assert "--require-hashes --requirement" in (ROOT / "Makefile").read_text()


def test_a_package_with_another_content_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "idna-3.20-py3-none-any.whl").write_bytes(b"somebody else's")
    lock = tmp_path / "lock"
    lock.write_text("".join(m[0] for m in PINNED.finditer((ROOT / "requirements.lock").read_text()) if "idna=" in m[0]))
    install = [sys.executable, "-m", "pip", "install", "--no-index", "--find-links", str(tmp_path), "--require-hashes"]
    asked = [*install, "--target", str(tmp_path / "t"), "--isolated", "--requirement", str(lock)]
    ended = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode != 0
    assert "HASHES" in ended.stderr


def _audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", ROOT / ".ci" / "audit.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _package(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "version": "1", **more}


BAD = _package("b", vulns=[{"id": "PYSEC-1", "fix_versions": ["2"]}])
SKIPPED = _package("s", skip_reason="not found")


@pytest.mark.parametrize(
    ("packages", "code", "says"),
    [
        ([_package("a", vulns=[])], 0, "No advisory on any of 1"),
        ([_package("a", vulns=[]), BAD], 1, "b 1: PYSEC-1, fixed in 2"),
        ([BAD, SKIPPED], 1, "no answer on s: of these nothing is known"),
        ([_package("a", vulns=[]), SKIPPED], 3, "no answer on s"),
        ([SKIPPED, SKIPPED], 3, "no answer on every package"),
        ([], 3, "no answer on every package"),
        (None, 3, "could not be reached"),
    ],
)
def test_an_audit_that_could_not_ask_is_no_clean_one(packages: Any, code: int, says: str) -> None:
    found, said = _audit().verdict(None if packages is None else {"dependencies": packages})
    assert found == code
    assert says in said
