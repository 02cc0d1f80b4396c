"""The page of a report. Its style is the status page's, and a little more."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.resources import files
from itertools import starmap

from onefold.core.invariants import INVARIANTS, Comparison
from onefold.core.values.plain import counted
from onefold.report.elements import Html, element, joined
from onefold.report.timeline import Incident, clock, marks, timeline
from onefold.store.history import StoredEpoch

__all__ = ["Report", "page"]

_HEAD = Html(  # a browser asks nobody, not even for an icon, and runs nothing
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    '<meta http-equiv="Content-Security-Policy" content="default-src data:; style-src \'unsafe-inline\'">'
    '<link rel="icon" href="data:,">'
)
SHOWN_MAX = 100  # violations of an invariant, partitions of a sink
RIGHT = {"expected": "rows expected", "actual": "rows found", "dead": "dead letters", "untold": "untold"}
_MEANING = {each.name: (each.__doc__ or "").partition("\n")[0] for each in INVARIANTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a page says. `behind` has a text by sink, `invariants` the violations by name; `tables` have rows by title,
    and a row its cells by column. `epochs` are the oldest first."""

    title: str
    is_exact: bool
    comparisons: Mapping[str, Comparison]
    invariants: Mapping[str, Sequence[str]]
    epochs: Sequence[StoredEpoch] = ()
    incidents: Sequence[Incident] = ()
    behind: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, Sequence[Mapping[str, str]]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    at_s: float = field(default_factory=time.time)


def page(report: Report) -> str:
    """One HTML document. It asks nobody for anything, and has no script."""
    sheets = files("onefold.daemon") / "page/style.css", files("onefold.report") / "report.css"
    style = element("style", Html("".join(sheet.read_text() for sheet in sheets)))
    verdict = ("good", "exact") if report.is_exact else ("bad", "NOT exact")
    badge = element("span", verdict[1], class_=f"badge {verdict[0]}")
    body = (
        element("div", element("h1", report.title), badge, class_="title"),
        *map(_note, (f"{clock(report.at_s)} UTC", *report.notes)),
        _section("Source and sinks", _table(_counts(report)), *starmap(_findings, report.comparisons.items())),
        _section("Invariants", _table(starmap(_judged, report.invariants.items()))),
        _section("Epochs", *_epochs(report)),
        *(_section(title, _table(rows)) for title, rows in report.tables.items()),
    )
    return joined(_HEAD, element("title", report.title), style, element("main", *body))


def _counts(report: Report) -> Iterable[dict[str, str]]:
    for sink, found in report.comparisons.items():
        counts = {each.name: value for each in fields(found) if isinstance(value := getattr(found, each.name), int)}
        said = {name: f"{n:,}" if name in RIGHT or not n else _wrong(f"{n:,}") for name, n in counts.items()}
        behind = {"behind": report.behind[sink]} if sink in report.behind else {}
        yield {"sink": sink} | {RIGHT.get(name, name): text for name, text in said.items()} | behind


def _findings(sink: str, found: Comparison) -> Html:
    samples = _list([joined(f"{kind}: ", element("code", key)) for kind, keys in found.samples.items() for key in keys])
    counts = [(place, [f"{n:,} {kind}" for kind, n in wrong.items()]) for place, wrong in found.partitions.items()]
    places = _list([f"partition {place}: {', '.join(said)}" for place, said in counts])
    parts = joined(*map(_note, found.notes), samples, places)
    return joined(element("h3", sink), parts) if parts else parts


def _judged(name: str, found: Sequence[str]) -> dict[str, str]:
    says = joined(_wrong(counted(len(found), "violation")), _list(found)) if found else "holds"
    return {"invariant": joined(element("b", name), " ", _MEANING.get(name, "")), "verdict": says}


def _epochs(report: Report) -> Iterable[Html]:
    if not (found := marks(report.epochs, report.incidents)):
        return [_note("The checkpoint store has no epochs of the pipeline.")]
    each, of = -(-len(report.epochs) // len(found)), f"the {len(report.epochs):,} epochs that are on record"
    says = f"Each bar is one of {of}" if each == 1 else f"Each bar is {each:,} consecutive ones of {of}"
    words = element("details", element("summary", "The same in words"), _table(mark.cells for mark in found))
    return _note(f"{says}; the oldest is on the left."), timeline(found), words


def _wrong(text: str) -> Html:
    return element("b", text, class_="wrong")


def _note(text: str) -> Html:
    return element("p", text, class_="quiet")


def _section(title: str, *content: str) -> Html:
    return element("section", element("h2", title), *content)


def _list(texts: Sequence[str]) -> Html:
    more = [f"{len(texts) - SHOWN_MAX:,} more"] if len(texts) > SHOWN_MAX else []
    return element("ul", *(element("li", text) for text in (*texts[:SHOWN_MAX], *more))) if texts else Html()


def _table(rows: Iterable[Mapping[str, str]]) -> Html:
    rows = [*rows]
    names = dict.fromkeys(name for row in rows for name in row)
    head = element("tr", *(element("th", name, scope="col") for name in names))
    cells = ([element("td", element("div", row.get(name, "")), data_label=name) for name in names] for row in rows)
    return element("table", element("thead", head), element("tbody", *(element("tr", *each) for each in cells)))
