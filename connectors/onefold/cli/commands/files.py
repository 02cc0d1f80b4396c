"""`onefold new | schema | validate`: files that define pipelines, without any server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from onefold.cli.console import print_json
from onefold.core import ConfigError


def new(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The file that is written: orders.toml.")],
    sink: Annotated[list[str] | None, typer.Option(help="The sinks' kinds: postgres, sql, kafka, hbase.")] = None,
    runtime: Annotated[Literal["spark", "engine"], typer.Option(help="What runs it.")] = "spark",
) -> None:
    """Write a file that defines a pipeline, with all keys that there are, for you to fill in."""
    from onefold.core.values.names import check_pipeline_name, near
    from onefold.pipeline.example import example
    from onefold.pipeline.toml_models import SINKS

    kinds = sink or ["postgres"]
    for kind in kinds:
        if kind not in SINKS:
            hint = near(kind, SINKS) or f"; known are {', '.join(SINKS)}"
            raise ConfigError("option-value", f"--sink: there is no kind {kind!r}{hint}")
    if path.suffix != ".toml":
        raise ConfigError("option-value", f"{path} has to end in .toml: by that, commands know what it is")
    try:
        check_pipeline_name(path.stem)
    except ConfigError as error:
        raise error.reworded(f"{path}: the pipeline is called as its file, and {error.message}") from None
    text = example(path.stem, kinds, runtime)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError("file-exists", f"{path} is there already: name another file, or remove it first") from None
    except OSError as error:
        raise ConfigError("file-unwritable", f"{path} cannot be written: {error.strerror}") from error
    typer.echo(f"{path}: fill in what is in capitals, then: onefold validate {path}")


def schema() -> None:
    """Print the JSON Schema of such files, for editors that complete and check them."""
    from onefold.pipeline.toml_models import file_table

    print_json(file_table().model_json_schema())


def validate(
    pipelines: Annotated[
        list[str], typer.Argument(metavar="PIPELINE...", help="orders.toml, or jobs/orders.py:pipeline; one or more.")
    ],
) -> None:
    """Check the descriptions of pipelines without asking any server. Exit code 2 where one is wrong."""
    from onefold.pipeline import Spark, read

    wrong = []
    for named in pipelines:
        try:
            pipeline = read(named)
        except ConfigError as error:
            wrong.append(error)
            typer.echo(f"{type(error).__name__}: {error}", err=True)
        else:
            sinks = ", ".join(sink.name for sink in pipeline.sinks)
            where = "Spark" if isinstance(pipeline.runtime, Spark) else "the engine"
            typer.echo(f"{named}: pipeline {pipeline.name!r}, on {where} into {sinks}")
    if wrong:
        raise typer.Exit(wrong[0].exit_code)
