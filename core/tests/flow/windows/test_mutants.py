"""Windows that are broken, each in one way: some case shows it, with restarts and other subtasks between all epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from timed_rows import epochs_of
from window_cases import CASES, ON_ENGINE, flow, numbered, told
from window_subtasks import Subtasks

from onefold.engine.logics.logic import Output
from onefold.engine.logics.windows import block_log
from onefold.engine.logics.windows.block_log import BlockLog
from onefold.engine.logics.windows.contents import Contents, OpenWindow
from onefold.engine.logics.windows.elements import ElementsLogic
from onefold.engine.logics.windows.slicing import SlicingLogic
from onefold.flow.time.clocks import Clocks
from onefold.flow.time.triggers import WindowState

Patch = pytest.MonkeyPatch
Broken = Callable[[Patch], None]


def nothing(*_: Any) -> None:
    return


def judged_by_the_end_of_its_epoch(patch: Patch) -> None:
    """The epoch's rows are looked at once the watermark has moved."""
    taken: dict[int, list[pa.RecordBatch]] = {}
    take, flush = SlicingLogic.take, SlicingLogic.flush

    def held(self: SlicingLogic, batch: Any, port: int) -> Iterator[Output]:
        del port
        taken.setdefault(id(self), []).append(batch)
        return iter(())

    def judged(self: SlicingLogic, task: Any) -> Iterator[Output]:
        self._closed_us = max(self._closed_us, self._reached() - self._operator.lateness_us)
        for batch in taken.pop(id(self), []):
            yield from take(self, batch, 0)
        yield from flush(self, task)

    patch.setattr(SlicingLogic, "take", held)
    patch.setattr(SlicingLogic, "flush", judged)


def closed_slices_stay(patch: Patch) -> None:
    patch.setattr(BlockLog, "drop_while", nothing)


def a_block_is_lost_where_blocks_are_merged(patch: Patch) -> None:
    patch.setattr(block_log, "MERGED", 2)
    put = BlockLog._put

    def losing(self: BlockLog, slice_: int, block: pa.RecordBatch) -> None:
        merge, self._merge = self._merge, lambda blocks: blocks[-1]
        put(self, slice_, block)
        self._merge = merge

    patch.setattr(BlockLog, "_put", losing)


def late_rows_come_before_the_decision_and_again(patch: Patch) -> None:
    emitted: list[Output] = []
    take = SlicingLogic.take

    def again(self: SlicingLogic, batch: Any, port: int) -> Iterator[Output]:
        yield from emitted
        emitted.clear()
        for output in take(self, batch, port):
            if output[0] is not None:
                emitted.append(output)
            yield output

    patch.setattr(SlicingLogic, "take", again)


def restored(spoil: Callable[[OpenWindow], None]) -> Broken:
    """What a restore forgets of each window."""

    def broken(patch: Patch) -> None:
        restore = OpenWindow.restore

        def spoilt(self: OpenWindow, value: Any) -> None:
            restore(self, value)
            spoil(self)

        patch.setattr(OpenWindow, "restore", spoilt)

    return broken


def timers_have_all_rows(patch: Patch) -> None:
    fire = ElementsLogic._fire

    def beyond(self: ElementsLogic, window: OpenWindow, up_to_us: int, when: str) -> None:
        fire(self, window, max(up_to_us, 2**64), when)

    patch.setattr(ElementsLogic, "_fire", beyond)


def evicted_rows_stay(patch: Patch) -> None:
    replace = Contents.replace

    def kept(self: Contents, window: OpenWindow, rows: Any) -> None:
        if not rows:  # the window is emptied
            replace(self, window, rows)

    patch.setattr(Contents, "replace", kept)


def closed_windows_stay(patch: Patch) -> None:
    patch.setattr(Contents, "leave", nothing)


def sessions_forget_what_became_of_one(patch: Patch) -> None:
    patch.setattr(WindowState, "merge", nothing)


def on_merge_is_not_called(patch: Patch) -> None:
    from onefold.flow import Trigger
    from onefold.flow.time.triggers import AtEnd

    for of in (AtEnd, *Trigger.__subclasses__()):
        if "on_merge" in vars(of):
            patch.setattr(of, "on_merge", nothing)


def purging_keeps_its_rows(patch: Patch) -> None:
    answer = ElementsLogic._answer

    def kept(self: ElementsLogic, window: OpenWindow, given: Any, up_to: int, when: str) -> None:
        rows = [*self._contents.rows(window)]
        answer(self, window, given, up_to, when)
        self._contents.replace(window, rows)

    patch.setattr(ElementsLogic, "_answer", kept)


def a_timer_fires_beyond_the_close(patch: Patch) -> None:
    flush = ElementsLogic.flush

    def late(self: ElementsLogic, task: Any) -> Iterator[Output]:
        object.__setattr__(self._operator, "lateness_us", 2**60)
        return flush(self, task)

    patch.setattr(ElementsLogic, "flush", late)


def time_goes_on_from_the_last_epoch(patch: Patch) -> None:
    """And not from the last records."""
    patch.setattr(Clocks, "_last_ms", property(lambda self: self._now_ms))


OF_SLICES = (
    judged_by_the_end_of_its_epoch,
    closed_slices_stay,
    a_block_is_lost_where_blocks_are_merged,
    late_rows_come_before_the_decision_and_again,
)
MUTANTS: dict[str, Broken] = {
    "rows are judged by the watermark of their own epoch": judged_by_the_end_of_its_epoch,
    "closed slices are not dropped": closed_slices_stay,
    "a block is lost where blocks are merged": a_block_is_lost_where_blocks_are_merged,
    "late rows come before the decision and again": late_rows_come_before_the_decision_and_again,
    "timers are not restored": restored(lambda window: window.event_us.clear()),
    "timers of processing time are not restored": restored(lambda window: window.processing_ms.clear()),
    "how often windows have fired is not restored": restored(lambda window: setattr(window, "emissions", 0)),
    "how many rows are new is not restored": restored(lambda window: setattr(window, "new_rows", 0)),
    "what triggers remember is not restored": restored(lambda window: window.state.values.clear()),
    "what came out of sessions is not restored": restored(lambda window: window.out.clear()),
    "rows are not restored": restored(lambda window: window.chunks.clear()),
    "timers fire with rows beyond them": timers_have_all_rows,
    "timers fire beyond a window's close": a_timer_fires_beyond_the_close,
    "evicted rows stay": evicted_rows_stay,
    "closed windows stay": closed_windows_stay,
    "sessions that become one forget what triggers remember": sessions_forget_what_became_of_one,
    "a session that grows is not told to its trigger": on_merge_is_not_called,
    "a firing that purges keeps the rows": purging_keeps_its_rows,
    "time goes on from the last epoch, and not from the last records": time_goes_on_from_the_last_epoch,
}


def is_noticed(broken: Broken, folder: Path) -> Iterator[str]:
    """By which cases: their results, or what is left at the end, is other than expected."""
    cases = [*CASES, *ON_ENGINE]
    for number, each in enumerate(cases if broken in OF_SLICES else reversed(cases)):
        watermarks, window, given, text, expected = each.values
        by_elements = broken not in OF_SLICES
        with pytest.MonkeyPatch.context() as patch:
            broken(patch)
            made = flow(watermarks, window, given, by_elements=by_elements)
            place = folder / f"{number}-{by_elements}"
            run, found = Subtasks(made, watermarks, place, "memory", 2), []
            try:
                for epoch in epochs_of(text):
                    run.epoch(epoch.rows, epoch.now_s, epoch.is_last)
                    run.die(2)
                    results, late = run.epoch(epoch.rows, epoch.now_s, epoch.is_last)
                    found.append([told(row) for row in (*results, *late)])
                    run.restore(2)
                outs = {epoch: sorted(out) for epoch, out in numbered(found).items()}
                is_other = outs != {epoch: sorted(out) for epoch, out in expected.items()}
                if is_other or ("END" in text and run.kept()):
                    yield str(each.id)
            except Exception as error:
                yield f"{each.id}: {error!r}"
            finally:
                run.close()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_windows_is_noticed(name: str, tmp_path: Path) -> None:
    assert next(is_noticed(MUTANTS[name], tmp_path), None) is not None


@pytest.mark.slow
def test_windows_as_they_are_show_nothing(tmp_path: Path) -> None:
    assert [*is_noticed(nothing, tmp_path)] == []
