"""Options models: what a call may say, and the same as texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import pytest
from harness.errors import raises

from onefold.clients.option_texts import from_texts, to_texts, with_names_of_spark
from onefold.clients.options import constructed_from, options_model
from onefold.core.errors import ConfigError

Word = Literal["red", "green"]


@options_model
@dataclass(frozen=True)
class SinkConfig:
    url: str
    _: KW_ONLY
    row_count: int = 1
    timeout_s: float = field(default=2.5, metadata={"option": "timeoutMs"})
    is_quick: bool = False
    mode: Word = "red"
    colours: Word | Sequence[Word] = ()
    columns: Sequence[str] | None = None
    row_key: str | Sequence[str] | None = field(default=None, metadata={"whole": True})
    extra: Mapping[str, str] = field(default_factory=dict, metadata={"option": "client."})
    secret: str = field(default="", metadata={"option": None})


class Source(SinkConfig):
    pass


class Sink:
    @constructed_from(SinkConfig)
    def __init__(self, options: SinkConfig) -> None:
        self.options = options


@pytest.mark.parametrize("made", [Source, Sink])
@pytest.mark.parametrize(
    ("arguments", "given", "message"),
    [
        (("u",), {"row_cuont": 1}, r"^{0} has no option 'row_cuont'; did you mean 'row_count'\?"),
        (("u",), {"nonsense": 1}, "^{0} has no option 'nonsense'; known are url, row_count"),
        ((), {}, "^{0}: missing a required argument: 'url'"),
        (("u", 3), {}, "^{0}: too many positional arguments"),
        (("u",), {"mode": "blue"}, "^{0}: mode is 'red' or 'green', not 'blue'"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_in_the_name_of_what_was_called(
    made: Any, arguments: tuple[Any, ...], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message.format(made.__name__)):
        made(*arguments, **given)


def test_what_differs_from_the_defaults_comes_back_from_its_texts() -> None:
    given = Source(
        "h",
        row_count=7,
        timeout_s=1.5,
        is_quick=True,
        colours=["green", "red"],
        columns=["a", 'odd "name", here', " spaced "],
        row_key="a, b",
        extra={"x.y": "1"},
    )
    texts = to_texts(given)
    assert texts == {
        "url": "h",
        "rowCount": "7",
        "timeoutMs": "1500",
        "isQuick": "True",
        "colours": "green,red",
        "columns": 'a,"odd ""name"", here"," spaced "',
        "rowKey": "a, b",
        "client.x.y": "1",
    }
    assert Source(**from_texts("format", texts, Source)) == given
    assert Source(**from_texts("format", {name.upper(): text for name, text in texts.items()}, Source)) == given
    assert to_texts(Source("h")) == {"url": "h"}
    assert from_texts("format", {"colours": "RED , Green"}, Source) == {"colours": ["red", "green"]}
    assert from_texts("format", {"columns": "", "theirs": "1"}, Source, beside=["theirs"]) == {"columns": []}


@pytest.mark.parametrize(
    ("texts", "code"),
    [
        ({"rowCuont": "1"}, "option-unknown"),
        ({"secret": "1"}, "option-unknown"),
        ({"Password": "1"}, "option-not-allowed"),
        ({"rowCount": "1.5"}, "option-value"),
        ({"timeoutMs": "soon"}, "option-value"),
        ({"isQuick": "yes"}, "option-value"),
        ({"rowCount": "1"}, "option-missing"),
    ],
)
def test_texts_that_are_no_options_are_refused(texts: dict[str, str], code: str) -> None:
    with raises(ConfigError, code):
        from_texts("format", texts, Source, required=["url"], refused={"password": "put it into the url"})


def test_a_message_names_options_as_spark_has_them() -> None:
    said = "row_count is 1 to 5: raise timeout_s, or leave out url= and extra=; columns stay, and my_row_count"
    means = "rowCount is 1 to 5: raise timeoutMs, or leave out url= and client.*=; columns stay, and my_row_count"
    assert with_names_of_spark(said, SinkConfig) == means
