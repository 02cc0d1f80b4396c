"""A report's page: every text is escaped, nothing is asked for, and what was found is on it."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from harness.reports import BEGIN_S, ODD, an_epoch, report

from onefold.core.invariants import INVARIANTS, Comparison
from onefold.report.elements import Html, element, joined
from onefold.report.page import page
from onefold.report.timeline import Incident

NONE = Comparison(0, 0, 0, 0, 0, 0)


class Seen(HTMLParser):
    """The elements that a browser would find, their attributes, and the texts of what is shown; style is none."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.cells: list[list[str]] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th"):
            self.cells[-1].append("")
        if tag not in ("meta", "link", "html"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"{tag} ends what it did not begin"

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"] and data.strip():
            self.texts.append(data.strip())
            if {"td", "th"} & {*self.open}:
                self.cells[-1][-1] += data


def test_a_text_is_escaped_wherever_it_stands_and_only_markup_is_not() -> None:
    odd = "<b a='1' c=\"2\">&amp;"
    made = element("p", odd, element("i", "<"), data_label=odd, class_=None)
    assert made == (
        '<p data-label="&lt;b a=&#x27;1&#x27; c=&quot;2&quot;&gt;&amp;amp;">'
        "&lt;b a=&#x27;1&#x27; c=&quot;2&quot;&gt;&amp;amp;<i>&lt;</i></p>"
    )
    assert joined(Html("<b>") + "<") == "&lt;b&gt;&lt;", "what is no longer known to be right is escaped"


def test_the_page_has_its_parts_in_their_order() -> None:
    seen = Seen(page(report(3)))
    assert seen.open == []
    outline = [tag for tag in seen.tags if tag in ("h1", "section", "h2", "h3", "dl", "ul", "table", "svg", "details")]
    assert outline == [
        *("h1", "section", "h2", "h3", "dl", "ul", "h3", "dl", "ul"),
        *("section", "h2", "table", "ul", "ul"),
        *("section", "h2", "svg", "svg", "svg", "svg", "details", "table"),
        *("section", "h2", "table"),
    ]
    assert seen.texts[:3] == ["onefold verify: orders", "onefold verify: orders", "NOT exact"]
    assert seen.texts[4:26] == [
        *("Source and sinks", "orders"),
        *("rows expected", "600,000", "rows found", "600,000", "lost", "1", "duplicated", "1", "changed", "0"),
        *("unexpected", "0", "dead letters", "12", "untold", "0"),
        *("the sink began after epoch 3", "lost:", "id=5 (expected 1, found 0)", "duplicated:"),
    ]
    assert seen.cells[-3:] == [["sink", "behind"], ["orders", "1,200 records"], ["sales", "0 records"]]
    for said in ("id=7 (expected 1, found 2)", "partition sales/3: 1 lost", "1 violation", "rows: up to 97"):
        assert said in seen.texts
    assert "exact" in Seen(page(report(3, is_exact=True))).texts


def test_what_is_wrong_is_marked_and_what_is_counted_is_not() -> None:
    text = page(report(0))
    for name, figure, colour in (("lost", "1", "bad"), ("changed", "0", "good"), ("dead letters", "12", "good")):
        assert f'<dt>{name}</dt><dd class="{colour}">{figure}</dd>' in text


def test_each_invariant_says_what_it_means_and_holds_or_names_what_contradicts_it() -> None:
    seen = Seen(
        page(report(0, invariants={each.name: [] for each in INVARIANTS} | {"chain": ["one", "two"], "own": []}))
    )
    verdicts = {row[0].partition(" ")[0]: row for row in seen.cells if row[1:]}
    assert verdicts["no-duplicate"] == ["no-duplicate No record is reflected twice.", "holds"]
    assert verdicts["chain"][1] == "2 violationsonetwo"
    assert verdicts["own"] == ["own", "holds"]


@pytest.mark.parametrize("odd", ODD, ids=["script", "attributes", "unseen", "long"])
def test_odd_texts_stay_texts_everywhere(odd: str) -> None:
    found = Comparison(1, 1, 1, 0, 0, 0, notes=(odd,), samples={odd: [odd]}, partitions={odd: {odd: 1}})
    told = report(
        2,
        title=odd,
        comparisons={odd: found},
        invariants={odd: [odd]},
        epochs=[an_epoch(1), an_epoch(2, state="damaged", error=odd)],
        incidents=[Incident("faults", BEGIN_S, odd)],
        tables={odd: [{odd: odd}]},
        notes=[odd],
    )
    plain = report(2, **{name: getattr(told, name) for name in ("epochs", "incidents")})
    plain = replace(
        plain,
        comparisons={"s": replace(found, notes=("n",), samples={"k": ["t"]}, partitions={"p": {"k": 1}})},
        invariants={"i": ["t"]},
        tables={"t": [{"c": "v"}]},
        notes=["n"],
    )
    text = page(told)
    text.encode()  # no half of a surrogate pair
    seen, other = Seen(text), Seen(page(plain))
    assert seen.tags == other.tags, "no text makes an element"
    assert [name for name, _ in seen.attributes] == [name for name, _ in other.attributes]
    assert not re.search(r"[\x00-\x09\x0b-\x1f\ud800-\udfff\u202e\u2028]", text)
    assert "k" * 1001 not in text


def test_the_page_asks_for_nothing_and_runs_nothing() -> None:
    seen = Seen(page(report()))
    assert not {"script", "img", "iframe", "a", "object", "base", "link"} & {*seen.tags}
    assert not [name for name, _ in seen.attributes if name in ("src", "href", "style", "action")]
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    styles = page(report()).split("<style>")[1].split("</style>")[0]
    assert "url(" not in styles and "@import" not in styles
    assert dict(seen.attributes)["content"] == "default-src 'none'; style-src 'unsafe-inline'"


def test_a_pipeline_without_epochs_has_a_page_too() -> None:
    seen = Seen(page(report(0, comparisons={}, invariants={})))
    assert "The checkpoint store has no epochs of the pipeline." in seen.texts
    assert "svg" not in seen.tags


def test_of_many_violations_and_partitions_the_first_hundred_are_shown_and_the_rest_counted() -> None:
    many = [f"violation {at}" for at in range(50_000)]
    places = {f"sales/{at}": {"lost": 1} for at in range(5_000)}
    seen = Seen(page(report(0, invariants={"chain": many}, comparisons={"s": replace(NONE, partitions=places)})))
    assert {"50,000 violations", "violation 99", "49,900 more", "partition sales/99: 1 lost", "4,900 more"} <= {
        *seen.texts
    }
    assert not {"violation 100", "partition sales/100: 1 lost"} & {*seen.texts}
