"""Where downloads are kept from one run to the next."""

from __future__ import annotations

import os
from pathlib import Path

from onefold.core.extras import naming_extras


def cache_directory() -> Path:
    """ONEFOLD_CACHE, else the user's cache directory (`~/.cache/onefold` on Linux)."""
    if named := os.environ.get("ONEFOLD_CACHE"):
        return Path(named).expanduser().absolute()
    with naming_extras():
        import platformdirs

    return Path(platformdirs.user_cache_dir("onefold"))
