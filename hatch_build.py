"""Builds the compiled library with the package where there is a C compiler; without one, the package goes without it.

`ONEFOLD_COMPILED=off` leaves it out, for a wheel that fits every machine; `required` fails instead.

README's links to docs/ are relative in the repository. In the package's metadata they lead to the site, under the URL
that pyproject.toml names as Documentation.
"""

from __future__ import annotations

import os
import re
import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_NATIVE = "sources/onefold/sources/native"


class CompiledLibrary(BuildHookInterface):  # type: ignore[type-arg]  # generic only where hatchling is checked
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        choice = os.environ.get("ONEFOLD_COMPILED", "") or "auto"
        if choice == "off":
            return
        building = runpy.run_path(f"{self.root}/{_NATIVE}/building.py")
        try:
            library = building["build"]()
        except building["NotBuilt"] as error:
            if choice == "required":
                raise
            self.app.display_warning(f"onefold without its compiled library: {error}")
            return
        if version == "editable":
            return
        build_data["force_include"][str(library)] = f"onefold/sources/native/{library.name}"
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"  # it uses nothing of Python's own interface


class Readme(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        site = metadata["urls"]["Documentation"].rstrip("/")
        text = Path(self.root, "README.md").read_text(encoding="utf-8").replace("](docs/README.md", "](docs/pages.md")
        text = re.sub(r"\]\(docs/([\w-]+)\.md", rf"]({site}/\1.html", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
