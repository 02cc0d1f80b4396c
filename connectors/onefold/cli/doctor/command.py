"""`onefold doctor`."""

from __future__ import annotations

import json
import sys

import typer
from rich.console import Console

from onefold.cli.arguments import AsJson, Named

__all__ = ["doctor"]


def doctor(pipeline: Named, as_json: AsJson = False) -> None:
    """What the pipeline guarantees, and whether its servers are set up for it. Changes nothing. Exit code 1 if not."""
    from onefold.cli.doctor.report import print_diagnosis
    from onefold.cli.doctor.runtime import examine_runtime
    from onefold.definition import read
    from onefold.doctor import diagnose

    definition = read(pipeline)
    runtime, schema = examine_runtime(definition)
    found = diagnose(
        definition.name,
        definition.sinks,
        store=definition.store_url,
        source=definition.source,
        schema=schema,
        require_tls=definition.require_tls,
        dead_letters=definition.dead_letters,
        runtime=runtime,
    )
    if as_json:
        json.dump(found.as_dict(), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        print_diagnosis(Console(soft_wrap=True), found)
    if not found.holds:
        raise typer.Exit(1)
