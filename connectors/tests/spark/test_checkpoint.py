"""Spark's checkpoint as files on this machine: nothing here needs Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from harness.errors import raises

from onefold.clients.files import check_writable, is_local
from onefold.core import CheckpointMismatch, ConfigError, Positions, Relation
from onefold.core.positions import CLOCKS
from onefold.core.protocol.coordinator import Coordinator
from onefold.core.protocol.effects import Protocol
from onefold.spark.runtime.checkpoint import CheckpointFiles, running_query
from onefold.store.job.offset_log import end_before, end_of, end_of_running, first_start, last_committed

T = TypeVar("T")
NOBODY = cast(Any, None)


def asked(protocol: Protocol[T]) -> T:
    return Coordinator("p", NOBODY, {}, NOBODY, files=CheckpointFiles(NOBODY)).run(protocol)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "offsets").mkdir()
    return tmp_path


def log(root: Path, batch: int, *sources: str, version: str = "v1") -> None:
    (root / "offsets" / str(batch)).write_text("\n".join([version, '{"batchWatermarkMs":0}', *sources]))


def test_the_positions_of_a_batch_are_those_of_all_its_sources(root: Path) -> None:
    log(root, 3, '{"orders":{"0":17,"1":4}}', "12")
    assert asked(end_of(f"file:{root}", 3)) == Positions.of({"orders/0": 17, "orders/1": 4, "#1": 12})
    assert asked(end_of(str(root), 4)) is None


def test_a_source_that_had_no_data_yet_has_no_positions(root: Path) -> None:
    log(root, 0, "-", '{"orders":{"0":17}}')
    assert asked(end_of(f"file:{root}", 0)) == Positions.of({"orders/0": 17})


def test_the_clocks_that_a_batch_went_by_stand_beside_its_positions(root: Path) -> None:
    times = '{"batchWatermarkMs":1500,"batchTimestampMs":1795233546000,"conf":{}}'
    (root / "offsets" / "3").write_text(f'v1\n{times}\n{{"orders":{{"0":17}}}}')
    log(root, 2, '{"orders":{"0":17}}')
    found, before = (asked(end_of(str(root), batch, CLOCKS)) for batch in (3, 2))
    assert found == Positions.of({"orders/0": 17, "batchWatermarkMs": "1500", "batchTimestampMs": "1795233546000"})
    assert before == found.of_records(), "a watermark that has not begun is none"
    assert found.topics() == before.topics()
    assert found.relation_to(before) is Relation.UNORDERED


def test_another_version_of_the_offset_log_is_refused(root: Path) -> None:
    log(root, 0, '{"orders":{"0":17}}', version="v2")
    with raises(ConfigError, "offset-log-format", "'v2'"):
        asked(end_of(f"file:{root}", 0))


def test_where_batch_ids_skip_the_last_offsets_before_count(root: Path) -> None:
    log(root, 2, '{"orders":{"0":17}}')
    log(root, 10, '{"orders":{"0":20}}')
    (root / "offsets" / ".10.crc").touch()
    assert asked(end_before(f"file:{root}", 10)) == Positions.of({"orders/0": 17})
    assert asked(end_before(f"file:{root}", 11)) == Positions.of({"orders/0": 20})
    assert asked(end_before(f"file:{root}", 0)) is None


def test_a_checkpoint_that_lost_all_earlier_offsets_is_a_mismatch_with_a_way_out(root: Path) -> None:
    log(root, 5, '{"orders":{"0":17}}')
    with raises(CheckpointMismatch, "offsets-file-missing", "starting_offsets='ledger'"):
        asked(end_before(f"file:{root}", 5))


def test_the_start_that_sparks_own_kafka_connector_logged_is_found(root: Path) -> None:
    logs = ['v1\n{"path":"a"}\n{"path":"b"}', '\0v1\n{"orders":{"0":5}}', "v1\n1795233546", 'v1\n{"logOffset":0}']
    for number, text in enumerate(logs):
        directory = root / "sources" / str(number)
        directory.mkdir(parents=True)
        (directory / "0").write_text(text)
    assert asked(first_start(f"file:{root}", 0, Positions.of({"orders/0": 9}))) == Positions.of({"orders/0": 5})


def test_the_start_that_a_source_of_ours_says_in_its_offsets_is_found_and_is_no_position(root: Path) -> None:
    log(root, 0, '{"orders":{"0":17,"1":4,"from":"0:5"},"joined":{"0":1,"from":""}}')
    end = asked(end_of_running(str(root), 0))
    start = asked(first_start(str(root), 0, end))
    assert start == Positions.of({"orders/0": 5})
    assert end.tells_begin_of() == set() == {*start.marks}


def test_a_first_batch_whose_start_is_on_record_nowhere_is_refused(root: Path) -> None:
    log(root, 0, '{"orders":{"0":17}}')
    with raises(ConfigError, "batch-start-unknown"):
        asked(first_start(str(root), 0, asked(end_of_running(str(root), 0))))
    with raises(CheckpointMismatch, "offsets-file-missing"):
        asked(end_of_running(str(root), 1))


@pytest.mark.parametrize("name", ["a#b", "100%25", "what?", "with space"])
def test_every_directory_name_is_read_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name / "offsets").mkdir(parents=True)
    log(tmp_path / name, 0, '{"orders":{"0":1}}')
    for root in (f"file:{tmp_path}/{name}", f"file://{tmp_path}/{name}", f"{tmp_path}/{name}"):
        assert is_local(root)
        assert asked(end_of(root, 0)) == Positions.of({"orders/0": 1})


def test_object_stores_and_hdfs_are_not_local() -> None:
    assert not is_local("s3://bucket/x")
    assert not is_local("hdfs://cluster/x")


def test_where_spark_cannot_be_asked_the_checkpoint_says_which_query_it_is(root: Path) -> None:
    with raises(ConfigError, "checkpoint-of-another-query"):
        running_query(NOBODY, None, str(root))
    (root / "metadata").write_text('{"id":"5a1e"}')
    query = running_query(NOBODY, None, str(root))
    assert (query.query_id, query.root, query.stateful) == ("5a1e", str(root), None)
    log(root, 0, "12")
    (root / "commits").mkdir()
    (root / "commits" / "0").touch()
    committed = asked(last_committed(str(root)))
    assert committed is not None and committed.query_id == query.query_id, "what is done is that query's"


@pytest.mark.parametrize("damaged", ["", "{", "[]", "[" * 100_000], ids=["empty", "torn", "a list", "nested too deep"])
def test_a_checkpoint_whose_metadata_is_garbage_is_refused_by_name(damaged: str, root: Path) -> None:
    (root / "metadata").write_text(damaged)
    with raises(CheckpointMismatch, "checkpoint-damaged"):
        running_query(NOBODY, None, str(root))


def test_a_checkpoint_that_cannot_be_written_is_refused_with_what_is_in_its_way(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for fine in (tmp_path / "made" / "by the start", f"file:{tmp_path}/there", "s3://bucket/orders"):
        check_writable(str(fine))
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "nothing is made"
    for wrong, says in (("file/orders", "cannot be made"), ("file", "cannot be written")):
        with raises(ConfigError, "checkpoint-unwritable", f"{says}"):
            check_writable(str(tmp_path / wrong))
