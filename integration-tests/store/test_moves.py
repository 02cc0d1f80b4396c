"""Positions move under every kind of sink, whose ledger goes with them; and back where nothing is doubled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from harness.errors import raises
from harness.places import KINDS, SCHEMA, Place, each, place_of

from onefold.core import ConfigError, EpochRecord, EpochState, Fenced, Positions
from onefold.core.moves import MoveNote
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.job.move_session import MoveSession

pytestmark = pytest.mark.servers


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with place_of(request.param, request, tmp_path) as place:
        yield place


def move(place: Place, to: int) -> EpochRecord:
    store = CheckpointStore(place.store)
    with closing(MoveSession(place.pipeline, [place.sink()], store, 5, (), lambda _: None)) as session:
        session.take_over()
        return session.move(Positions.of({"t/0": to}), MoveNote("somebody"))


@each(*KINDS)
def test_a_sinks_ledger_goes_with_the_positions_and_whoever_ran_before_is_fenced(place: Place) -> None:
    with place.session() as living:
        living.open_sinks(SCHEMA)
        for _ in range(2):
            place.epoch(living)
        moved = move(place, 4)
        assert (moved.epoch, moved.rows) == (3, 0)
        with pytest.raises(Fenced):
            place.epoch(living)
    with place.session() as session:
        (ledger,) = session.ledgers().values()
        assert ledger is not None and (ledger.epoch, ledger.positions) == (3, moved.range.end)
    place.run(1)
    assert sorted(place.ids()) == [*range(20), *range(40, 50)]


@each(*KINDS)
def test_records_come_again_where_a_sink_absorbs_them_or_its_target_is_empty(
    place: Place, request: pytest.FixtureRequest
) -> None:
    kind = str(request.node.callspec.params["place"])
    place.run(2)
    if kind == "row_key":
        assert MoveNote.of(move(place, 0)).new == ()
    else:
        with raises(ConfigError, "move-would-double"):
            move(place, 0)
        if kind in ("transactional", "keyed"):
            place.run(1)
            place.assert_exact(3)
            return
        place.empty()
        assert MoveNote.of(move(place, 1)).new == (place.sink().name,)
    place.run(2)
    assert sorted(place.ids()) == [*range(0 if kind == "row_key" else 10, 20 if kind == "row_key" else 30)]


@each("two_phase", "staged", "row_key")
def test_a_move_that_was_decided_is_completed_by_the_next_start(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.run(1)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointStore, "complete", dies)
        with pytest.raises(KeyboardInterrupt):
            move(place, 3)
    place.run(1)
    store = CheckpointStore(place.store)
    with closing(store):
        assert {record.state for record in store.history(place.pipeline)} == {EpochState.COMPLETE}
    assert sorted(place.ids()) == [*range(10), *range(30, 40)]
