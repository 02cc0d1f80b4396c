"""What others wrote, on one line."""

from __future__ import annotations

import pytest

from onefold.core.values.plain import plain, said_without, shown_url


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("größe 日本 🙂 'x' \\n", "größe 日本 🙂 'x' \\n"),
        ("a\nb\r\n\tc\0", r"a\nb\r\n\tc\x00"),
        ("\x1b[31mred\x9b", r"\x1b[31mred\x9b"),
        ("a\u2028b\u2029c\x85d\x0be", r"a\u2028b\u2029c\x85d\x0be"),
        ("\u202etxt.exe \ufeff\u200b", r"\u202etxt.exe \ufeff\u200b"),
        ("\ud800x", r"\ud800x"),
        ("x" * 2000, "x" * 1000 + "..."),
        ("\n" * 2000, "\\n" * 500 + "..."),
    ],
)
def test_a_text_is_shown_on_one_line_with_all_that_is_unseen_spelt_out(text: str, shown: str) -> None:
    assert plain(text) == shown
    assert len(plain(text).splitlines()) == 1 and plain(text).encode()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("/srv/flows", "/srv/flows"),
        ("s3://bucket/flows", "s3://bucket/flows"),
        ("s3://AKIA:secret@bucket/flows?region=x&secret_key=secret#secret", "s3://bucket/flows"),
        ("s3://AKIA:sec/ret@bucket/flows", "s3://bucket/flows"),
        ("s3://AKIA:sec/r@et/secret@bucket/flows", "s3://bucket/flows"),
        ("s3://AKIA:sec?ret@bucket/flows", "s3://..."),
        ("s3://AKIA:sec#ret@bucket/flows", "s3://..."),
        ("s3://:secret@bucket/flows", "s3://bucket/flows"),
        ("hdfs://me@host:9000/a@b", "hdfs://host:9000/a@b"),
        ("hdfs://host:9000/a@b", "hdfs://host:9000/a@b"),
        ("file:///srv/a:b@c", "file:///srv/a:b@c"),
        ("s3://bucket/\x1b[2J", r"s3://bucket/\x1b[2J"),
    ],
)
def test_a_url_is_shown_without_what_may_be_secret_in_it(url: str, shown: str) -> None:
    assert shown_url(url) == shown
    assert said_without(url, f"{url}: no") == f"{shown}: no"
