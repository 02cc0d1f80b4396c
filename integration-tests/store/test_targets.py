"""Tables and topics that somebody drops, makes anew or empties behind a pipeline's back: the next start says so."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.errors import raises
from harness.places import KINDS, Place, each, place_of

from onefold.core import DataLoss
from onefold.core.findings import Level
from onefold.operate.doctor import diagnose

pytestmark = pytest.mark.servers

TOLD = ("two_phase", "staged", "transactional")  # their servers tell a target that is made anew from the one before
EMPTIED = ("two_phase", "sqlite", "row_key")


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with place_of(request.param, request, tmp_path) as place:
        yield place


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    return [text for text in found if " is empty, and pipeline " in text]


@each(*KINDS)
def test_a_target_that_is_missing_under_its_ledger_stops_the_start_and_nothing_is_made(place: Place) -> None:
    place.run(2)
    place.drop()
    for _ in range(2):
        with raises(DataLoss, "target-missing", f"{place.target}"):
            place.run()
    place.make()
    place.run(accept_targets=True)
    place.run()
    assert sorted(place.ids()) == list(range(20, 40)), "it went on where it stood, as it was told to"


@each(*TOLD)
def test_a_target_that_was_made_anew_stops_the_start_until_it_is_accepted(place: Place) -> None:
    place.run(2)
    place.drop()
    place.make()
    with raises(DataLoss, "target-made-anew", f"{place.target}"):
        place.run()
    found = diagnose(place.pipeline, [place.sink()], store=place.store)
    assert any("made anew" in f.says for f in found.sinks[0].findings if f.level is Level.PROBLEM)
    place.run(accept_targets=True)
    place.run()
    assert sorted(place.ids()) == list(range(20, 40))


@each(*EMPTIED)
def test_a_target_that_was_emptied_is_a_warning(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.run(2)
    place.run(0)
    assert warnings(caplog) == []
    place.empty()
    found = diagnose(place.pipeline, [place.sink()], store=place.store)
    (caution,) = [f.says for f in found.sinks[0].findings if f.level is Level.CAUTION and " is empty, and " in f.says]
    assert found.holds and warnings(caplog) == [], "doctor has it as a finding"
    place.run()
    (text,) = warnings(caplog)
    assert text == caution
    assert place.target in text and "at least 20 rows" in text and "give the flow another name" in text
    place.run()
    assert len(warnings(caplog)) == 1, "it is said once"
    assert sorted(place.ids()) == list(range(20, 40))


@each("two_phase")
@pytest.mark.parametrize(
    "statement", ["VACUUM FULL {t}", "DELETE FROM {t}", "ALTER TABLE {t} ADD more uuid DEFAULT gen_random_uuid()"]
)
def test_postgres_tells_what_was_emptied_at_once_from_what_was_rewritten_or_deleted(
    place: Place, caplog: pytest.LogCaptureFixture, statement: str
) -> None:
    place.run(2)
    place.more["ask"](statement.format(t=place.target))
    place.run()
    assert warnings(caplog) == []


@each("two_phase")
def test_a_partition_that_is_truncated_alone_is_no_warning_and_a_truncated_whole_is(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    ask = place.more["ask"]
    ask(f"CREATE TABLE {place.target} (id bigint, n bigint) PARTITION BY RANGE (id)")
    ask(f"CREATE TABLE {place.target}_a PARTITION OF {place.target} FOR VALUES FROM (0) TO (10)")
    ask(f"CREATE TABLE {place.target}_b PARTITION OF {place.target} DEFAULT")
    place.run(2)
    ask(f"TRUNCATE {place.target}_a")
    place.run(0)
    assert warnings(caplog) == []
    place.empty()
    place.run(0)
    assert len(warnings(caplog)) == 1


@each("sqlite")
def test_a_store_of_an_older_onefold_has_noted_no_targets_and_a_missing_one_is_found_all_the_same(place: Place) -> None:
    place.run(1)
    with place.session() as session, session.store.database.transaction() as connection:
        connection.rows("DELETE FROM onefold_pins")
    place.drop()
    with raises(DataLoss, "target-missing"):
        place.run()


@each("sqlite")
def test_a_target_that_no_epoch_was_decided_for_is_made_anew_without_a_word(place: Place) -> None:
    place.run(0)
    place.drop()
    place.run(2)
    place.assert_exact(2)
