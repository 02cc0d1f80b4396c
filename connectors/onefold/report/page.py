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
from onefold.report.timeline import FIGURES, EpochMark, Incident, clock, first, marks
from onefold.store.history import StoredEpoch

SHOWN_MAX = 100  # violations of an invariant, samples and partitions of a sink
GOOD = {True: "good", False: "bad"}
RIGHT = {"expected": "rows expected", "actual": "rows found", "dead": "dead letters", "untold": "untold"}
_HEAD = Html(  # a browser asks for nothing, not even an icon, and runs nothing
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
)
_MEANING = {each.name: (each.__doc__ or "").partition("\n")[0] for each in INVARIANTS}
_WIDTH_MIN, _HEIGHT = 40, 40  # of a line of bars: in bars, so that few do not become blocks; in units of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Of `tables` each row has its cells by the names of the columns. `epochs`: the oldest first."""

    title: str
    is_exact: bool
    comparisons: Mapping[str, Comparison]
    invariants: Mapping[str, Sequence[str]]
    epochs: Sequence[StoredEpoch] = ()
    incidents: Sequence[Incident] = ()
    tables: Mapping[str, Sequence[Mapping[str, str]]] = field(default_factory=dict)
    notes: Sequence[str] = ()


def page(report: Report) -> str:
    """One HTML document, without a script."""
    sheets = files("onefold.daemon") / "page/style.css", files("onefold.report") / "report.css"
    style = element("style", Html("".join(sheet.read_text() for sheet in sheets)))
    badge = element("span", "exact" if report.is_exact else "NOT exact", class_=f"badge {GOOD[report.is_exact]}")
    body = (
        element("div", element("h1", report.title), badge, class_="title"),
        _notes(f"{clock(time.time())} UTC", *report.notes),
        _section("Source and sinks", *starmap(_compared, report.comparisons.items())),
        _section("Invariants", _table([*starmap(_judged, report.invariants.items())])),
        _section("Epochs", *_epochs(report)),
        *(_section(title, _table(rows)) for title, rows in report.tables.items()),
    )
    return joined(_HEAD, element("title", report.title), style, element("main", element("div", *body)))


def _compared(sink: str, found: Comparison) -> Html:
    counts = [(each.name, n) for each in fields(found) if isinstance(n := getattr(found, each.name), int)]
    facts = [(RIGHT.get(name, name), f"{n:,}", GOOD[n == 0 or name in RIGHT]) for name, n in counts]
    tiles = [element("div", element("dt", name), element("dd", text, class_=good)) for name, text, good in facts]
    samples = [joined(f"{kind}: ", element("code", key)) for kind, keys in found.samples.items() for key in keys]
    places = [f"partition {p}: {', '.join(f'{n:,} {k}' for k, n in of.items())}" for p, of in found.partitions.items()]
    lists = _list([*samples, *places])
    return joined(element("h3", sink), element("dl", *tiles, class_="facts"), _notes(*found.notes), lists)


def _judged(name: str, found: Sequence[str]) -> dict[str, str]:
    says = element("b", counted(len(found), "violation") if found else "holds", class_=GOOD[not found])
    meaning = joined(element("b", name), " ", _MEANING.get(name, ""))
    return {"invariant": meaning, "verdict": joined(says, _list(found))}


def _epochs(report: Report) -> Iterable[Html]:
    if not (found := marks(report.epochs, report.incidents)):
        return [_notes("The checkpoint store has no epochs of the pipeline.")]
    each, of = counted(-(-len(report.epochs) // len(found)), "epoch"), f"{len(report.epochs):,}"
    names = dict.fromkeys([*FIGURES, *sorted({kind for mark in found for kind in mark.bars})])
    span = f"{found[0].cells['opened, UTC']} to {found[-1].cells['ended']} UTC"
    words = element("details", element("summary", "The same in words"), _table([mark.cells for mark in found]))
    lines = [_line(name, found) for name in names]
    return _notes(f"Each bar is {each} of the {of} on record, {span}."), *lines, words


def _line(name: str, found: Sequence[EpochMark]) -> Html:
    """Bars of a figure, or of a kind of event. Words are HTML beside them, so that they keep their size."""
    values, is_figure = [mark.bars.get(name, 0) for mark in found], name in FIGURES
    sizes = [round(value * _HEIGHT / (max(values) or 1), 1) for value in values]
    bars = [
        element("rect", element("title", f"{m.cells['epochs']}: {m.cells[name]}"), x=at, y=y, width=0.8, height=size)
        for at, (m, size) in enumerate(zip(found, sizes, strict=True))
        if (y := round(_HEIGHT - size, 1)) < _HEIGHT
    ]
    says = f"{name}: {f'up to {round(max(values), 2):,}' if is_figure else f'{sum(values):,}'}"
    shape = {"viewBox": f"0 0 {max(len(found), _WIDTH_MIN)} {_HEIGHT}", "preserveAspectRatio": "none", "role": "img"}
    drawn = element("svg", *bars, **shape, aria_label=says, class_=None if is_figure else "events")
    return element("div", element("p", says), drawn, class_="lane")


def _notes(*texts: str) -> Html:
    return joined(*(element("p", text, class_="quiet") for text in texts))


def _section(title: str, *content: str) -> Html:
    return element("section", element("h2", title), *content)


def _list(texts: Sequence[str]) -> Html:
    return element("ul", *(element("li", text) for text in first(texts, SHOWN_MAX))) if texts else Html()


def _table(rows: Sequence[Mapping[str, str]]) -> Html:
    names = dict.fromkeys(name for row in rows for name in row)
    head = element("tr", *(element("th", name, scope="col") for name in names))
    cells = ([element("td", element("div", row.get(name, "")), data_label=name) for name in names] for row in rows)
    return element("table", element("thead", head), element("tbody", *(element("tr", *each) for each in cells)))
