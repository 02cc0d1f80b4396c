"""What a pipeline finds out once stays as it was found."""

from __future__ import annotations

from pathlib import Path

from onefold.core.errors import Retriable
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.pins import pin


def test_the_first_answer_stays_for_each_pipeline_and_name(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    for expected in ("one", "one"):
        store = CheckpointStore(url)
        found = [pin(store, "p", "schema of orders", lambda answer=answer: answer) for answer in ("one", "two")]
        assert found == [expected, expected]
        assert pin(store, "q", "schema of orders", lambda: "three") == "three"
        store.close()


def test_of_two_who_find_out_at_once_the_second_is_told_the_first_ones_answer(tmp_path: Path) -> None:
    stores = [CheckpointStore(f"sqlite:///{tmp_path / 'store.db'}") for _ in range(2)]
    asked: list[str] = []

    def find() -> str:
        if not asked:
            asked.append(pin(stores[1], "p", "n", lambda: "meanwhile"))
        return "late"

    answers = []
    for _ in range(2):
        try:
            answers.append(pin(stores[0], "p", "n", find))
        except Retriable:
            continue
    assert answers == ["meanwhile"]
    for store in stores:
        store.close()
