"""`onefold doctor` and `onefold plan`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from onefold.cli.arguments import AsJson, Named
from onefold.core.findings import Level

if TYPE_CHECKING:
    from onefold.operate.doctor import Diagnosis

__all__ = ["doctor", "plan"]


def doctor(named: Named, as_json: AsJson = False) -> None:
    """What the pipeline guarantees, and whether its servers are set up for it. Changes nothing. Exit code 1 if not."""
    from onefold.cli.doctor_report import print_diagnosis

    found = _diagnosed(named)
    if as_json:
        _print_json(found.as_dict())
    else:
        print_diagnosis(Console(soft_wrap=True), found)
    if not found.holds:
        raise typer.Exit(1)


def plan(named: Named, as_json: AsJson = False) -> None:
    """What the first start of the pipeline makes or alters, by which statements. Changes nothing. Exit code 1 where a
    problem would keep the pipeline from starting."""
    from onefold.cli.doctor_report import print_plan

    found = _diagnosed(named)
    if as_json:
        problems = [finding for finding in found.findings if finding.level is Level.PROBLEM]
        _print_json(
            {
                "pipeline": found.pipeline,
                "whole": found.knows_rows and not problems,
                "makes": [asdict(making) for making in found.makes],
                "problems": [{"says": f.says, "code": f.error.code if f.error else None} for f in problems],
            }
        )
    else:
        print_plan(Console(soft_wrap=True), found)
    if not found.holds:
        raise typer.Exit(1)


def _diagnosed(named: str) -> Diagnosis:
    from onefold.operate.doctor import diagnose
    from onefold.operate.doctor.runtime import examine_runtime
    from onefold.pipeline import read

    pipeline = read(named)
    with Console(stderr=True).status("starting Spark") as shown:  # on a terminal only
        runtime, schemas = examine_runtime(pipeline)
        shown.update("asking the servers: one that is silent is waited for")
        return diagnose(
            pipeline.name,
            pipeline.everyone,
            store=pipeline.store_url,
            source=pipeline.topic,
            schemas=schemas,
            require_tls=pipeline.require_tls,
            runtime=runtime,
        )


def _print_json(value: object) -> None:
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")
