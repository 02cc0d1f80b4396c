"""What most of these benchmarks are told: how many rows, how often, and where."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["parser_of"]


def parser_of(
    module: str, about: str | None, *, rows: int, of: str, repeat: int = 3, by_parts: bool = False
) -> argparse.ArgumentParser:
    """`of` says what the rows are. `by_parts`: contestants are named by parts of their names, each runs once more
    before it counts, and every run may be written."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    add, before = parser.add_argument, ", after a warm-up" if by_parts else ""
    add("--rows", type=int, default=rows, help=f"{of} (default: %(default)s)")
    add("--repeat", type=int, default=repeat, help=f"how often each contestant runs{before} (default: %(default)s)")
    if by_parts:
        add("--only", nargs="+", metavar="PART", help="contestants whose name has one of these parts")
        add("--json", type=Path, metavar="FILE", help="write every run there")
    add("--directory", type=Path, default=Path(".onefold/bench"), help="servers and scratch (default: %(default)s)")
    return parser
