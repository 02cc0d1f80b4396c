"""Programs from Debian's packages, without installing them and without root."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from onefold.local.postgres.binaries import run
from onefold.local.server_errors import LocalServerError

# Every process of this machine needs these, so they are here; another libc beside its own loader would not start.
_LIBRARIES_HERE = frozenset(("libc6", "libgcc-s1", "libcrypt1"))


def unpack(package: str, folder: Path) -> None:
    """A package and the libraries that it depends on, as `folder`: whole, or not at all.

    Raises LocalServerError: that there is no apt-get, or in its own words why it could not fetch them.
    """
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise LocalServerError("apt-missing", "this machine has no apt-get to fetch Debian's packages with")
    folder.parent.chmod(0o755)  # what runs from here may run as another user
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}-", suffix=".part", dir=folder.parent) as part:
        packages, whole = Path(part, "packages"), Path(part, "whole")
        packages.mkdir()
        whole.mkdir(mode=0o755)
        try:
            _fetch(package, packages, [])
        except LocalServerError:
            # No package lists on this machine, or old ones: lists of our own, which needs no root.
            lists = Path(part, "lists")
            (lists / "partial").mkdir(parents=True)
            own = ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={part}", "-o", "APT::Sandbox::User="]
            run(["apt-get", *own, "-q", "update"])
            _fetch(package, packages, own)
        for archive in sorted(packages.glob("*.deb")):
            run(["dpkg", "-x", archive, whole])
        whole.replace(folder)


def _fetch(package: str, folder: Path, options: list[str]) -> None:
    said = run(["apt-cache", *options, "depends", package])
    libraries = [name for name in re.findall(r"^ +Depends: (lib\S+)$", said, re.M) if name not in _LIBRARIES_HERE]
    run(["apt-get", *options, "-q", "-o", "APT::Sandbox::User=", "download", package, *libraries], cwd=folder)
