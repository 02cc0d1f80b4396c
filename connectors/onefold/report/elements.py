"""HTML that is right by construction: a text gets into markup only here, escaped."""

from __future__ import annotations

from html import escape

from onefold.core.values.plain import plain


class Html(str):
    """Markup. Every other text is escaped, also what the operations of texts make of this."""


def joined(*children: str) -> Html:
    """A text is cut after 1,000 characters, and of it what nobody sees is written as Python writes it."""
    return Html("".join(each if isinstance(each, Html) else escape(plain(each)) for each in children))


def element(tag: str, /, *children: str, **attributes: object) -> Html:
    """Attributes are named `data_label`, `class_`; one that is None is left out."""
    named = ((name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items() if value is not None)
    given = "".join(f' {name}="{joined(str(value))}"' for name, value in named)
    return Html(f"<{tag}{given}>{joined(*children)}</{tag}>")
