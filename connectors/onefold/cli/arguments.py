"""Arguments and options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["AsJson", "Named", "Yes"]

Named = Annotated[
    str, typer.Argument(metavar="PIPELINE", help="orders.toml, or jobs/orders.py:pipeline, or package.module:pipeline.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Yes = Annotated[bool, typer.Option("--yes", help="Don't ask.")]
