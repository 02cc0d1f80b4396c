"""A pipeline that begins where another one stood, in every kind of sink; without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from harness.errors import raises
from harness.places import KINDS, Place, each, place_of

from onefold.core import ConfigError
from onefold.core.protocol.beginning import SavepointOrigin, begin_at, take
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.job.session import Session

pytestmark = pytest.mark.servers
LATER_MS = 4_000_000_000_000  # beyond this machine's clock


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with place_of(request.param, request, tmp_path) as place:
        yield place


@each(*KINDS)
def test_a_pipeline_under_another_name_goes_on_exactly_where_the_first_one_stood(place: Place) -> None:
    place.run(3)
    with closing(CheckpointStore(place.store)) as store:
        last = store.facts(place.pipeline).last
    assert last is not None
    origin = SavepointOrigin(last.epoch, LATER_MS, last.range.end, None)
    other = replace(place, pipeline=f"{place.pipeline}-new")
    with closing(Session(other.pipeline, [other.sink()], CheckpointStore(other.store), patience_s=5)) as session:
        generation, store_id = session.drive(take(origin, session.names))
        session.drive(begin_at(origin, generation, store_id, session.names))
    with closing(Session(other.pipeline, [other.sink()], CheckpointStore(other.store), patience_s=5)) as session:
        with raises(ConfigError, "pipeline-not-new"):
            session.drive(take(origin, session.names))
        generation, store_id = session.drive(take(origin, session.names, again=True))
        session.drive(begin_at(origin, generation, store_id, session.names))
        session.accept_targets(generation)
    other.run(2)
    other.assert_exact(5)
    with closing(CheckpointStore(other.store)) as store:
        epochs = [record.epoch for record in store.history(other.pipeline)]
        assert epochs == [3, 4, 5]
