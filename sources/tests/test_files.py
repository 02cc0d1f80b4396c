"""Files as a source: planned whole, read again the same, split, and refused where they changed. Asks no server."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness.errors import raises
from hypothesis import given
from hypothesis import strategies as st

from onefold.core.errors import BadRecord, ConfigError, DataLoss
from onefold.core.positions import Positions, Range
from onefold.core.source import MemoryJournal, Split, own_positions
from onefold.core.testing import Promise, check_source
from onefold.sources import FileSource
from onefold.sources.files import splitting
from onefold.sources.files.file_planner import FilePlanner
from onefold.sources.files.lines import lines_of
from onefold.sources.files.source import BoundedFiles

T0_S = 1_763_600_000
JOURNALS: defaultdict[str, MemoryJournal] = defaultdict(MemoryJournal)


def put_file(folder: Path, name: str, lines: bytes, at_s: int = T0_S) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lines)
    os.utime(path, (at_s, at_s))
    return path


def ids(first: int, end: int) -> bytes:
    return b"".join(b'{"id":%d}\n' % number for number in range(first, end))


def source(folder: Path, **more: Any) -> FileSource:
    return FileSource(str(folder), **{"format": "json", "schema": "id long", **more})


def planner_of(of: FileSource | BoundedFiles, frozen: Positions | None = None) -> FilePlanner:
    """A planner of another driver, with the journal of all that read the same folder."""
    path = of.source.path if isinstance(of, BoundedFiles) else of.path
    return of.planner(frozen, journal=JOURNALS[path])


def read(of: FileSource, span: Range) -> list[Any]:
    splits = planner_of(of).splits(span)
    return [row for split in splits for part in of.read(split) for row in part.rows.to_pylist()]


def everything(of: FileSource) -> list[int]:
    planner = planner_of(of)
    span = Range(planner.initial(), planner.latest(planner.initial()))
    return [row["id"] for row in read(of, span)]


def test_an_epoch_takes_the_oldest_files_within_its_limits_and_the_next_goes_on(tmp_path: Path) -> None:
    put_file(tmp_path, "b.json", ids(0, 3), T0_S)
    put_file(tmp_path, "day=1/a.json", ids(3, 6), T0_S + 1)
    put_file(tmp_path, "a.json", ids(6, 9), T0_S + 2)
    put_file(tmp_path, "_SUCCESS", b"", T0_S)
    put_file(tmp_path, ".part/x.json", b"no", T0_S)
    of = source(tmp_path, max_files_per_trigger=2)
    planner = planner_of(of)
    first = Range(planner.initial(), planner.end(planner.initial()))
    assert sorted(row["id"] for row in read(of, first)) == [0, 1, 2, 3, 4, 5]
    second = Range(first.end, planner.end(first.end))
    assert read(of, second) == [{"id": 6}, {"id": 7}, {"id": 8}]
    assert planner.end(second.end) == second.end == Positions.from_json(second.end.to_json())
    put_file(tmp_path, "0.json", ids(9, 10), T0_S - 100)  # older than all that was read, and moved here later
    assert read(of, Range(second.end, planner.end(second.end))) == [{"id": 9}]
    small = source(tmp_path, max_bytes_per_trigger=1)
    assert len(read(small, Range(first.end, planner_of(small).end(first.end)))) == 1


def test_a_file_that_was_read_may_go_and_is_not_read_again_when_it_returns(tmp_path: Path) -> None:
    path = put_file(tmp_path, "a.json", ids(0, 3))
    planner = planner_of(source(tmp_path))
    end = planner.end(planner.initial())
    path.unlink()
    assert planner.end(end) == end
    put_file(tmp_path, "a.json", ids(0, 3))
    assert planner.end(end) == end


@pytest.mark.parametrize("what", ["longer", "later", "gone"])
def test_a_planned_file_that_is_no_longer_as_it_was_is_data_loss(tmp_path: Path, what: str) -> None:
    path = put_file(tmp_path, "a.json", ids(0, 3))
    of = source(tmp_path)
    planner = planner_of(of)
    span = Range(planner.initial(), planner.end(planner.initial()))
    (split,) = planner.splits(span)
    if what == "gone":
        path.unlink()
    else:
        put_file(tmp_path, "a.json", ids(0, 4 if what == "longer" else 3), T0_S + 1)
        with raises(DataLoss, "file-changed"):
            planner.end(span.end)
    for asked in (lambda: list(of.read(split)), lambda: planner_of(of, span.start).splits(span)):
        with pytest.raises(DataLoss, match=f"a.json.*{'file-gone' if what == 'gone' else 'file-changed'}"):
            asked()


def test_a_file_that_grows_while_it_is_read_is_data_loss(tmp_path: Path) -> None:
    path = put_file(tmp_path, "a.json", ids(0, 3))
    of = source(tmp_path)
    planner = planner_of(of)
    (split,) = planner.splits(Range(planner.initial(), planner.end(planner.initial())))
    parts = of.read(split)
    next(parts)
    put_file(tmp_path, path.name, ids(0, 3), T0_S + 9)
    with raises(DataLoss, "file-changed"):
        list(parts)


def test_what_is_behind_is_counted_without_a_plan_a_text_or_a_trace(tmp_path: Path) -> None:
    class Counted(MemoryJournal):
        reads = 0

        def read(self, names: Collection[str]) -> dict[str, str]:
            self.reads += len(names)
            return super().read(names)

    of, journal = source(tmp_path, max_files_per_trigger=1, settle_s=60), Counted()
    for number in range(3):
        put_file(tmp_path, f"{number}.json", ids(number, number + 1), T0_S + number)
    driver, looker = of.planner(journal=journal), of.planner(journal=journal)
    assert sum(looker.behind(Positions()).values()) == 3
    first = driver.end(Positions())
    second = driver.end(first)
    texts, before = dict(journal.texts), journal.reads
    assert [sum(looker.behind(at).values()) for at in (first, first, second)] == [2, 2, 1]
    assert journal.reads - before == 4, "of each position its index, and a segment that it has not seen"
    assert journal.texts == texts
    put_file(tmp_path, "young.json", ids(3, 4), int(time.time()))
    assert sum(looker.behind(second).values()) == 1, "it has not settled"
    (tmp_path / "young.json").unlink()
    looker.behind(second)
    assert looker._held == {}, "nothing is kept of what is gone"


def test_a_young_file_waits_until_it_has_settled(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(ids(0, 1))
    planner = planner_of(source(tmp_path, settle_s=1000))
    assert planner.end(planner.initial()) == planner.initial()
    planner = planner_of(source(tmp_path))
    assert planner.end(planner.initial()) != planner.initial()


def test_a_bounded_source_has_the_files_of_its_first_epoch(tmp_path: Path) -> None:
    put_file(tmp_path, "a.json", ids(0, 3))
    put_file(tmp_path, "b.json", ids(3, 6))
    of = source(tmp_path, max_files_per_trigger=1)
    planner = planner_of(of.bounded().resolved(lambda _, find: find()))
    first = planner.end(planner.initial())
    put_file(tmp_path, "c.json", ids(6, 9))
    again = planner_of(of.bounded())
    assert not again.is_done(first)
    end = again.end(first)
    assert again.is_done(end)
    assert read(of, Range(planner.initial(), end)) == [{"id": number} for number in range(6)]
    (tmp_path / "b.json").unlink()
    assert again.end(end) == end
    with raises(DataLoss, "file-gone"):
        planner_of(of.bounded()).end(first)
    assert planner_of(of).end(end) != end  # unbounded, it goes on


@pytest.mark.parametrize("name", ["id", "from", "epochs", "x#y/0", "a b.json"])
def test_any_name_of_a_file_can_be_a_position(tmp_path: Path, name: str) -> None:
    put_file(tmp_path, name, ids(0, 2))
    of = source(tmp_path)
    assert everything(of) == [0, 1]
    end = planner_of(of).latest(Positions())
    assert own_positions(of, end) == Positions.from_json(end.to_json()) == end
    assert not end.topics()


def test_one_file_can_be_a_source(tmp_path: Path) -> None:
    assert everything(source(put_file(tmp_path, "a.json", ids(0, 2)))) == [0, 1]


def test_parquet_has_the_columns_of_the_first_file_unless_it_is_told(tmp_path: Path) -> None:
    table = pa.table(
        {"id": [1, 2], "at": pa.array([1, 2], pa.timestamp("ns")), "more": pa.array(["a", "b"], pa.large_string())}
    )
    pq.write_table(table, tmp_path / "1.parquet")
    os.utime(tmp_path / "1.parquet", (T0_S, T0_S))
    pq.write_table(table.select(["id"]), tmp_path / "2.parquet")
    of = FileSource(str(tmp_path), format="parquet")
    with raises(ConfigError, "schema-not-resolved"):
        of.arrow_schema()
    of = of.resolved(lambda _, find: find())
    assert of.schema == "id bigint, at timestamp_ntz, more string"
    with raises(BadRecord, "record-unreadable"):
        everything(of)  # nanoseconds would be lost
    assert everything(FileSource(str(tmp_path), format="parquet", schema="id long, more string")) == [1, 2, 1, 2]
    (tmp_path / "2.parquet").write_bytes(b"PAR1 no PAR1")
    with raises(BadRecord, "data-file-unreadable"):
        everything(FileSource(str(tmp_path), format="parquet", schema="id long"))


def test_a_large_parquet_file_is_split_by_its_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitting, "SPLIT_BYTES", 2000)
    pq.write_table(pa.table({"id": range(1000)}), tmp_path / "a.parquet", row_group_size=100)
    of = FileSource(str(tmp_path), format="parquet", schema="id long")
    splits = planner_of(of).splits(Range(Positions(), planner_of(of).latest(Positions())))
    assert len(splits) > 2
    assert everything(of) == [*range(1000)]


@pytest.mark.parametrize("ending", ["gz", "GZ", "bz2", "zst", "ZST", "lz4"])
def test_a_packed_file_is_known_by_its_ending_in_any_case(tmp_path: Path, ending: str) -> None:
    codec = pa.Codec.detect(f"a.{ending.lower()}").name
    with pa.CompressedOutputStream(str(tmp_path / f"a.json.{ending}"), codec) as file:
        file.write(ids(0, 3))
    assert everything(source(tmp_path)) == [0, 1, 2]


def test_compressed_lines_are_unpacked_and_never_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitting, "SPLIT_BYTES", 10)
    put_file(tmp_path, "a.json.gz", gzip.compress(ids(0, 500)))
    assert everything(source(tmp_path)) == [*range(500)]
    put_file(tmp_path, "a.json.gz", gzip.compress(ids(0, 500))[:-20])
    with raises(BadRecord, "data-file-unreadable"):
        everything(source(tmp_path))


@given(
    lines=st.lists(st.sampled_from([b"", b"\r", b"a", b"bb", b"c" * 9, b"d" * 40]), max_size=20),
    ends=st.booleans(),
    step=st.integers(1, 30),
    block=st.integers(1, 50),
)
def test_every_line_is_in_exactly_one_range(lines: list[bytes], ends: bool, step: int, block: int) -> None:
    whole = b"\n".join(lines) + (b"\n" if ends else b"")
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onefold.sources.files.lines._BLOCK", block)
        patch.setattr("onefold.sources.files.lines._CUT", 12)
        for start in range(0, len(whole), step):
            for batch in lines_of(pa.BufferReader(whole), start, start + step, 20):
                assert all(start <= place < start + step for place in batch.places)
                assert {size for size, _ in batch.too_long.values()} <= {40}
                at = {
                    place: whole[place : place + len(value)]
                    for place, value in zip(batch.places, batch.values, strict=True)
                }
                assert [*at.values()] == batch.values
                found += [value + b"!" * (n in batch.too_long) for n, value in enumerate(batch.values)]
    wanted = [line[:12] + b"!" if len(line) > 20 else line for line in whole.split(b"\n") if line not in (b"", b"\r")]
    assert found == wanted


def bad_of(of: FileSource) -> tuple[list[int], list[dict[str, Any]]]:
    splits = planner_of(of).splits(Range(Positions(), planner_of(of).latest(Positions())))
    parts = [part for split in splits for part in of.read(split)]
    return (
        [row["id"] for part in parts for row in part.rows.to_pylist()],
        [row for part in parts for row in part.bad.to_pylist()],
    )


def test_bad_lines_are_named_by_file_and_byte_and_treated_as_on_error_says(tmp_path: Path) -> None:
    path = put_file(tmp_path, "a.json", ids(0, 2) + b"x\n\n" + ids(2, 3) + b'{"id":"y"}\n' + b"{" + b" " * 300 + b"}\n")
    with raises(BadRecord, "record-unreadable", f"{path}"):
        bad_of(source(tmp_path))
    good, bad = bad_of(source(tmp_path, on_error="dead_letter", record_bytes_max=200))
    assert good == [0, 1, 2]
    assert [(row["source_topic"], row["source_offset"], row["value"][:9]) for row in bad] == [
        (str(path), 18, b"x"),
        (str(path), 30, b'{"id":"y"'),
        (str(path), 41, b"{        "),
    ]
    assert "302 bytes" in bad[2]["reason"]
    with raises(BadRecord, "too-many-bad-records"):
        bad_of(source(tmp_path, on_error="skip", bad_records_max=1))


def test_csv_lines_have_a_header_if_it_is_said_and_it_must_fit(tmp_path: Path) -> None:
    put_file(tmp_path, "a.csv", b'\xef\xbb\xbfid,"name"\r\n1,a\r\n2,"b,c"\r\n')
    of = FileSource(str(tmp_path), format="csv", schema="id long, name string", csv_header=True)
    assert everything(of) == [1, 2]
    with raises(BadRecord, "csv-header-mismatch"):
        everything(FileSource(str(tmp_path), format="csv", schema="id long, b string", csv_header=True))


def test_an_empty_line_of_one_csv_column_is_a_null(tmp_path: Path) -> None:
    put_file(tmp_path, "a.csv", b"1\n\n2\n")
    assert everything(FileSource(str(tmp_path), format="csv", schema="id long")) == [1, None, 2]


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"format": "jsn"}, "option-value"),
        ({"schema": None}, "schema-missing"),
        ({"schema": "id map<string,int>"}, "type-unsupported"),
        ({"schema": "id"}, "option-value"),
        ({"csv_header": True}, "options-conflict"),
        ({"name": "a/b"}, "option-value"),
        ({"name": "a" * 201}, "option-value"),
        ({"max_files_per_trigger": 0}, "option-value"),
        ({"on_error": "ignore"}, "option-value"),
        ({"settle_s": -1}, "option-value"),
        ({"no": 1}, "option-unknown"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_made(tmp_path: Path, settings: dict[str, Any], code: str) -> None:
    with raises(ConfigError, code):
        source(tmp_path, **settings)


@pytest.mark.parametrize("name", ["a\0b", "caf\udce9"])
def test_a_path_that_no_file_can_have_is_refused_when_it_is_made(tmp_path: Path, name: str) -> None:
    with raises(ConfigError, "option-value"):
        source(tmp_path / name)


def test_a_folder_that_is_missing_is_refused(tmp_path: Path) -> None:
    with raises(ConfigError, "folder-missing"):
        planner_of(source(tmp_path / "no")).end(Positions())
    with raises(ConfigError, "option-value"):
        planner_of(FileSource("odd://x/y", format="parquet")).end(Positions())


def test_no_password_of_a_uri_is_shown(tmp_path: Path) -> None:
    of = FileSource("s3://key:hunter2@bucket/in?secret=hunter2", format="parquet")
    assert "hunter2" not in repr(of)
    assert of.name == "in"
    assert of.exposure() == "" == source(tmp_path).exposure()
    assert "http" in FileSource("s3://bucket/in?scheme=http", format="parquet").exposure()


def test_a_split_says_about_how_much_it_is(tmp_path: Path) -> None:
    put_file(tmp_path, "a.json", ids(0, 2))
    put_file(tmp_path, "empty.json", b"")
    planner = planner_of(source(tmp_path))
    assert [(type(split), split.size) for split in planner.splits(Range(Positions(), planner.latest(Positions())))] == [
        (Split, 18)
    ]


@pytest.mark.parametrize(
    "kind", ["json", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("csv", "parquet", "json.gz"))]
)
def test_files_keep_every_promise_of_a_source(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    number = count()

    def put(numbers: Sequence[int]) -> None:
        name, records = f"{next(number)}.{kind}", list(numbers)
        if kind == "parquet":
            pq.write_table(pa.table({"id": records}), folder / name)
            return
        text = b"".join(b"%d\n" % n if kind == "csv" else b'{"id":%d}\n' % n for n in records)
        put_file(folder, name, gzip.compress(text) if kind.endswith("gz") else text)

    def spoil() -> None:
        put_file(folder, f"{next(number)}.{kind}", gzip.compress(b"x\n") if kind.endswith("gz") else b"x\n")

    def lose() -> None:
        for path in folder.iterdir():
            path.unlink()

    def make(on_error: str, bad_records_max: int) -> FileSource:
        more: dict[str, Any] = {"on_error": on_error, "bad_records_max": bad_records_max, "max_files_per_trigger": 1}
        form = kind.removesuffix(".gz")
        return FileSource(str(folder), **{**more, "format": form, "schema": None if form == "parquet" else "id long"})

    report = check_source(make, put, lose=lose, spoil=None if kind == "parquet" else spoil)
    assert (Promise.SOURCE_BAD in report.promises) == (kind != "parquet")


def test_reading_files_needs_no_client_of_a_server() -> None:
    looks = "print({'confluent_kafka', 'pyspark'} & {*sys.modules})"
    script = f"import sys; from onefold.sources import FileSource; {looks}"
    assert subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True).stdout == b"set()\n"
