"""CSV files: quotes, line breaks, headers and line endings, as real writers have them."""

from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path
from typing import Any

import pytest
from harness.errors import raises
from hypothesis import given
from hypothesis import strategies as st

from onefold.core.errors import BadRecord
from onefold.core.positions import Positions, Range
from onefold.core.source import Part
from onefold.sources import FileSource
from onefold.sources.files import splitting
from onefold.sources.files.lines import LineBatch, UnbalancedQuotes, records_of

SCHEMA = "id long, note string, amount long"
BROKEN = b'1,plain,10\n2,"dear all,\n99,was never ordered,1000000\nregards",20\n3,,30\n'


def source(folder: Path, **more: Any) -> FileSource:
    return FileSource(str(folder), **{"format": "csv", "schema": SCHEMA, **more})


def parts_of(of: FileSource) -> list[Part]:
    planner = of.planner()
    splits = planner.splits(Range(Positions(), planner.latest(Positions())))
    return [part for split in splits for part in of.read(split)]


def rows_of(of: FileSource) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for part in parts_of(of) for row in part.rows.to_pylist()]


def bad_of(of: FileSource) -> list[tuple[int, bytes]]:
    return [(row["source_offset"], row["value"]) for part in parts_of(of) for row in part.bad.to_pylist()]


def read(content: bytes, **more: Any) -> list[tuple[Any, ...]]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.csv").write_bytes(content)
        return rows_of(source(Path(folder), **more))


@pytest.mark.parametrize("on_error", ["fail", "skip", "dead_letter"])
@pytest.mark.parametrize("split_bytes", [16, 1 << 20])
def test_no_line_within_quotes_becomes_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_error: str, split_bytes: int
) -> None:
    monkeypatch.setattr(splitting, "SPLIT_BYTES", split_bytes)
    (tmp_path / "a.csv").write_bytes(BROKEN)
    with raises(BadRecord, "csv-quotes-torn"):
        rows_of(source(tmp_path, on_error=on_error))
    wanted = [(1, "plain", 10), (2, "dear all,\n99,was never ordered,1000000\nregards", 20), (3, None, 30)]
    assert rows_of(source(tmp_path, on_error=on_error, csv_multiline=True)) == wanted


_texts = st.text(st.sampled_from('a",\n\r\t\0 é1'), max_size=8)


@given(
    rows=st.lists(st.tuples(st.integers(0, 9), _texts, st.integers(0, 9)), max_size=8),
    ends=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC]),
    has_mark=st.booleans(),
    is_cut=st.booleans(),
    block=st.integers(1, 40),
)
def test_what_other_writers_write_is_read_or_refused_and_never_something_else(
    rows: list[tuple[int, str, int]], ends: str, quoting: Any, has_mark: bool, is_cut: bool, block: int
) -> None:
    if quoting == csv.QUOTE_MINIMAL and ends == "\n":  # Python's writer quotes no \r then
        rows = [(first, note.replace("\r", ""), last) for first, note, last in rows]
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator=ends, quoting=quoting).writerows(rows)
    content = b"\xef\xbb\xbf" * has_mark + out.getvalue().removesuffix(ends if is_cut else "").encode()
    # An empty field is a null where it is not quoted, as onefold's rules have it.
    wanted = [(first, note if note or quoting != csv.QUOTE_MINIMAL else None, last) for first, note, last in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onefold.sources.files.lines._BLOCK", block)
        assert read(content, csv_multiline=True) == wanted
        if any(mark in note for _, note, _ in rows for mark in "\r\n"):
            with pytest.raises(BadRecord):
                read(content)
        else:
            assert read(content) == wanted


@pytest.mark.parametrize(
    "content",
    [
        b'1,"a,2\n3,b,4\n',  # stays open to the end
        b'1,"a"b,2\n',
        b'1,"a\nb"c,2\n',
        b'1,"a\\"b",2\n',  # an escape that CSV does not know
        b'1,"' + b"a\n" * 200 + b'",2\n',  # more than record_bytes_max
        b'1,"' + b"a" * 400 + b'",2\n',
    ],
)
@pytest.mark.parametrize("multiline", [False, True])
def test_quotes_that_do_not_end_refuse_the_file_also_with_skip(tmp_path: Path, content: bytes, multiline: bool) -> None:
    (tmp_path / "a.csv").write_bytes(b"0,x,0\n" + content)
    of = source(tmp_path, on_error="skip", csv_multiline=multiline, record_bytes_max=300)
    with raises(BadRecord, "csv-quotes-torn"):
        rows_of(of)


def test_a_quote_in_what_was_cut_of_a_long_line_refuses_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold.sources.files.lines._BLOCK", 16)
    monkeypatch.setattr("onefold.sources.files.lines._CUT", 8)
    for content, code in (
        (b"1," + b"a" * 100 + b',"\n2,b,3\n",4\n', "csv-quotes-torn"),
        (b"1," + b"a" * 100 + b"\n2,b,3\n", ""),
    ):
        (tmp_path / "a.csv").write_bytes(content)
        of = source(tmp_path, on_error="skip", record_bytes_max=50)
        if code:
            with pytest.raises(BadRecord, match=code):
                rows_of(of)
        else:
            assert rows_of(of) == [(2, "b", 3)]


def test_a_dead_letter_has_the_line_without_its_ending_and_its_byte(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'1,a,x\r\n2,"b\nc",2\r\n3,"d\r\ne",y\r\n4,f\rg,5\n')
    of = source(tmp_path, on_error="dead_letter", csv_multiline=True)
    assert bad_of(of) == [(0, b"1,a,x"), (18, b'3,"d\r\ne",y'), (30, b"4,f\rg,5")]
    assert rows_of(of) == [(2, "b\nc", 2)]


def test_blank_lines_are_no_records_and_those_within_quotes_are_text() -> None:
    assert read(b'\n1,"a\n\n\r\nb",2\n\r\n\n', csv_multiline=True) == [(1, "a\n\n\r\nb", 2)]


def test_a_header_may_have_quotes_and_its_error_is_short(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'"id", "note",amount\r\n1,a,2\n')
    assert rows_of(source(tmp_path, csv_header=True)) == [(1, "a", 2)]
    (tmp_path / "a.csv").write_bytes(b"x\x1b[31m\r2026 ERROR forged" + b"A" * (2 << 20) + b"\n1,a,2\n")
    with raises(BadRecord, "csv-header-mismatch") as raised:
        rows_of(source(tmp_path, csv_header=True, on_error="skip"))
    assert len(str(raised.value)) < 2000
    assert str(raised.value).isprintable()


def test_joined_records_keep_the_places_at_which_they_begin() -> None:
    lines = LineBatch([b'a,"b', b'c"', b"d"], [0, 5, 8])
    (found,) = records_of(iter([lines]), ",", 100, with_blank=False)
    assert (found.values, found.places) == ([b'a,"b\nc"', b"d"], [0, 8])
    with pytest.raises(UnbalancedQuotes):
        list(records_of(iter([LineBatch([b'a,"b'], [0])]), ",", 100, with_blank=False))
