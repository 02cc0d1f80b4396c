"""docs/api.md: the public names, with their signatures and docstrings, from the code."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.renewing import assert_renewed

from onefold.core import errors

LINE_MAX = 110
ADDRESS = re.compile(r"<function .*? at 0x\w+>")
PAGE = Path(__file__).parents[3] / "docs" / "api.md"
LISTED = {
    "onefold.core": "errors, and the contract of sinks",
    "onefold.core.source": "the contract of sources",
    "onefold.core.testing": "conformance of sinks, sources and stores",
    "onefold.local": "servers for development",
    "onefold.testing": "for tests of connectors: servers in containers, and the conformance kit",
}
WITH_METHODS = (
    "Pipeline",
    "EpochWriter",
    "Flow",
    "Stream",
    "KeyedStream",
    "WindowedStream",
    "ConnectedStream",
    "SparkStream",
    "Graph",
    "FlowTest",
    "StateReader",
)
BESIDE = {
    "verify": "onefold.spark.verify.verification",
    "diagnose": "onefold.operate.doctor",
    "LagMeter": "onefold.sources.kafka",
    "lag": "onefold.sources.kafka",
}


class Plain(str):
    """An annotation that shows without quotes."""

    __repr__ = str.__str__


def signature(name: str, called: Any) -> str:
    """`name(...) -> ...`; a long one with a line for each argument."""
    made = inspect.signature(called)
    arguments = [
        each.replace(annotation=Plain(each.annotation)) if isinstance(each.annotation, str) else each
        for each in made.parameters.values()
        if each.name != "self"
    ]
    answer = "" if inspect.isclass(called) else f" -> {made.return_annotation}"
    text = ADDRESS.sub("...", str(inspect.Signature(arguments)))
    if len(f"{name}{text}{answer}") > LINE_MAX:
        lines = [ADDRESS.sub("...", f"    {each},") for each in arguments]
        keywords = [number for number, each in enumerate(arguments) if each.kind is each.KEYWORD_ONLY]
        if keywords:
            lines.insert(keywords[0], "    *,")
        text = "\n".join(["(", *lines, ")"])
    return f"{name}{text}{answer}"


def shown(name: str, called: Any) -> Iterator[str]:
    """A heading, and one block of its signature and docstring; of a property its type. Options are in options.md."""
    yield from ("", f"### {name}", "", "```text")
    is_options = inspect.isclass(called) and called.__module__.startswith(("onefold.sources", "onefold.sinks"))
    if isinstance(called, property):
        yield f"{name}: {called.fget.__annotations__['return']}"
    else:
        yield f"{name}(...)" if is_options else signature(name, called)
    yield from ("", inspect.getdoc(called) or "", "```")


def sentence(thing: Any) -> str:
    """What a name is, in its own docstring's first paragraph; of an error its exit code, and what the tree says."""
    if inspect.isclass(thing) and issubclass(thing, errors.OnefoldError):
        meaning = dict(re.findall(r"── (\w+) +(.+)", errors.__doc__ or "")).get(
            thing.__name__, "the root of all errors"
        )
        return f"exit code {thing.exit_code}: {meaning}"
    own = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__ if inspect.isroutine(thing) else None
    text = " ".join(inspect.cleandoc(own or "").split("\n\n")[0].split())
    return "" if re.match(r"\w+\(\w+: '", text) else text  # what dataclass writes


def listed(names: dict[str, Any]) -> Iterator[str]:
    yield from ("", "| Name | What it is |", "| --- | --- |")
    for name, thing in names.items():
        if text := sentence(thing):
            yield f"| `{name}` | {text.replace('|', chr(92) + '|').replace('<', chr(92) + '<')} |"


def page() -> Iterator[str]:
    for module in (
        "onefold.spark",
        "onefold.flow",
        "onefold.flow.testing",
        "onefold.engine",
        "onefold.pipeline",
        "onefold.sources",
        "onefold.sinks",
    ):
        yield from ("", f"## {module}")
        face = importlib.import_module(module)
        for name in face.__all__:
            if not callable(getattr(face, name)):
                continue  # a member of an enum, which has its own place
            yield from shown(name, getattr(face, name))
            if name in WITH_METHODS:
                for method, called in vars(getattr(face, name)).items():
                    is_told = inspect.isfunction(called) or (isinstance(called, property) and called.__doc__)
                    if is_told and not method.startswith("_"):
                        yield from shown(f"{name}.{method}", called)
    for module, title in LISTED.items():
        face = importlib.import_module(module)
        yield from ("", f"## {module}: {title}", *listed({name: getattr(face, name) for name in face.__all__}))
    yield from ("", "## Elsewhere")
    for name, module in BESIDE.items():
        yield from shown(f"{module}.{name}", getattr(importlib.import_module(module), name))


@pytest.mark.docs
def test_the_page_has_every_public_name() -> None:
    assert_renewed(PAGE, "test_api_page.py", "\n".join(page()))
