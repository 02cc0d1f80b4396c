"""check_sink: right sinks pass, each wrong one fails by the promise it breaks, and a kit that saw nothing fails."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import broken_sinks as broken
import pyarrow as pa
import pytest
import write_through_sinks as through
from harness.errors import raises
from sqlite_sink import SqliteSink
from sqlite_staged_sink import SqliteStagedSink

from onefold.core import ConfigError, SinkKind
from onefold.core.testing import BrokenPromise, ConformanceReport, Promise, check_sink
from onefold.core.testing.conformance import sinks as conformance_of_sinks
from onefold.core.testing.conformance.call_processes import Processes
from onefold.core.testing.conformance.promises import Book
from onefold.core.testing.conformance.report import passed

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
CALLS = {"write", "writer's abort", "prepare", "abort", "commit", "bind", "write_ledger", "open", "recover"}
Sinks = Callable[..., ConformanceReport]


@pytest.fixture
def check(tmp_path: Path) -> Iterator[Sinks]:
    """`check_sink` of a class of sinks, over a file of its own: in memory if there is room, for its many fsyncs."""
    in_memory = Path("/dev/shm")
    directory = tempfile.TemporaryDirectory(dir=in_memory if in_memory.is_dir() else tmp_path)
    path = f"{directory.name}/rows.db"

    def ask(query: str) -> list[Any]:
        db = sqlite3.connect(path)
        try:
            return [value for (value,) in db.execute(query)]
        finally:
            db.close()

    def check(cls: type[SqliteSink], **settings: Any) -> ConformanceReport:
        settings = {"steps_max": 10, "moments": 1, "patience_s": 0.2} | settings
        return check_sink(
            partial(cls, path),
            rows=lambda: ask("SELECT id FROM rows"),
            prepared=lambda: ask("SELECT count(*) FROM onefold_stage")[0] if issubclass(cls, SqliteSink) else 0,
            **settings,
        )

    yield check
    directory.cleanup()


@pytest.mark.parametrize("cls", [SqliteSink, pytest.param(SqliteStagedSink, marks=pytest.mark.slow)])
def test_a_right_sink_passes_and_every_call_was_struck_before_inside_and_after(
    check: Sinks, cls: type[SqliteSink]
) -> None:
    report = check(cls, patience_s=10)
    is_staged = cls is SqliteStagedSink
    assert report.strikes.keys() == (CALLS | {"merge"} if is_staged else CALLS)
    assert all(s.before == 1 and s.inside >= 2 and s.after >= 1 for s in report.strikes.values()), report
    assert report.crashes > 80
    assert (Promise.MERGE_COUNTS in report.promises) is is_staged
    assert (Promise.COMMIT_DAMAGED in report.promises) is not is_staged
    assert all(report.promises.values())
    assert "processes killed" in str(report) and Promise.PREPARE_DURABLE.value in str(report)


@pytest.mark.slow
def test_a_right_write_through_sink_passes(check: Sinks) -> None:
    report = check(through.Sink, patience_s=10, steps_max=2)
    assert report.strikes.keys() == (CALLS - {"abort"}) | {"announce", "seal"}
    assert all(s.before == 1 and s.inside >= 2 and s.after >= 1 for s in report.strikes.values()), report
    assert {Promise.WRITTEN_AGAIN, Promise.NOTED_WHOLE, Promise.ANNOUNCE_DURABLE} <= report.promises.keys()
    assert Promise.SWEPT not in report.promises


def of_one_name(ids: Sequence[int]) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "name": ["one"] * len(ids)})


@pytest.mark.slow
def test_a_sink_whose_readers_rest_on_an_order_passes_if_it_asks_for_all_of_it(
    check: Sinks, shared: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conformance_of_sinks, "Processes", lambda _modules: contextlib.nullcontext(shared))
    report = check(through.AsksForItsOrder, patience_s=10, steps_max=1, make_batch=of_one_name)
    assert report.promises[Promise.SHARED_OUT]
    with pytest.raises(BrokenPromise) as caught:
        check(through.AsksForItsRowsOnly, make_batch=of_one_name)
    assert caught.value.promise is Promise.SHARED_OUT


WRONG = {
    broken.BuffersOnly: (Promise.PREPARE_DURABLE, "rows are missing", "none in the call: it had returned"),
    broken.PreparesRowByRow: (Promise.SWEPT, "prepared() finds", "inside it"),
    broken.ShowsOnPrepare: (Promise.UNDECIDED_UNSEEN, "of them are visible", ""),
    broken.PreparesNothing: (Promise.PREPARE_NOTHING, "Committable(", ""),
    broken.SameNameForAttempts: (Promise.ATTEMPTS_APART, "00000000-0000", ""),
    broken.WriterAbortsTheTask: (Promise.WRITER_ABORT, "nothing", ""),
    broken.CommitsTwice: (Promise.COMMIT_ONCE, "more than once", "none in the call"),
    broken.CommitsInTwoSteps: (Promise.COMMIT_ONCE, "more than once", "inside it, before line at sqlite_sink.py"),
    broken.CommitsAndTidiesUp: (Promise.COMMIT_ONLY_NAMED, "nothing", ""),
    broken.CommitsWhatIsThere: (Promise.COMMIT_DAMAGED, "it returned None", ""),
    broken.StopsAtDamage: (Promise.COMMIT_DAMAGED, "rows are missing", ""),
    broken.AbortsAll: (Promise.ABORT_ONLY_NAMED, "nothing", ""),
    broken.AbortsOnce: (Promise.ABORT_IDEMPOTENT, "KeyError", ""),
    broken.ForgetsThePipeline: (Promise.LEFTOVERS_EXACT, "2/1/1/", ""),
    broken.ForgetsTheGeneration: (Promise.LEFTOVERS_EXACT, "/11/6/", ""),
    broken.VerifiesNothing: (Promise.VERIFY, "it returned None", ""),
    broken.LedgerGoesBack: (Promise.LEDGER_FORWARD, "it returned None", ""),
    broken.LedgerInTwoSteps: (Promise.LEDGER_DURABLE, "None", "inside it, before line at sqlite_sink.py:"),
    broken.BindsAnybody: (Promise.BOUND, "it returned None", ""),
    broken.BindsForNothing: (Promise.LEDGER_FORWARD, "it returned None", ""),
    broken.BindsInTwoSteps: (Promise.BOUND_DURABLE, "store-", "inside it"),
    through.AnnouncesForAnybody: (Promise.FENCES, "it returned None", ""),
    broken.HidesMembers: (Promise.MEMBERS, "None", ""),
    broken.KeepsALock: (Promise.PICKLES, "cannot pickle", ""),
    broken.SaysAtomic: (Promise.ATOMIC_EPOCH, "3 of 6 rows", "inside it"),
    broken.ChangesItsMind: (Promise.GUARANTEE, "open", ""),
    broken.MergesWhatIsThere: (Promise.MERGE_COUNTS, "it returned Decided", ""),
    broken.MergesForItself: (Promise.MERGE_ROLLED_BACK, "6 of them are visible", ""),
    broken.MergesInCommit: (Promise.MERGE_ATOMIC, "decided: True, in the ledger: True, 0 of 6 rows", "none"),
    broken.MergesWithoutTheLedger: (Promise.MERGE_ATOMIC, "in the ledger: False", "none"),
    broken.MergesWhenFenced: (Promise.MERGE_FENCED, "it returned Decided", ""),
    broken.SharesAnyStore: (Promise.SHARES_STORE, "True", ""),
    through.DropsWhatComesLate: (Promise.SHARED_OUT, "rows are missing", ""),
    through.AddsAgain: (Promise.SHOWN_ONCE, "more than once", ""),
    through.KeepsTheFirstAttempt: (Promise.WRITTEN_AGAIN, "rows are missing", "inside it"),
    through.ForgetsToNote: (Promise.NOTED_WHOLE, "it raised Damaged", ""),
    through.TakesAnyCopy: (Promise.COPY_DAMAGED, "it returned None", ""),
    through.AnnouncesOverAnything: (Promise.ANNOUNCE_FORWARD, "it returned None", ""),
    through.RecordsOverTheAnnouncement: (Promise.ANNOUNCED, "None", ""),
    through.AnnouncesInTwoSteps: (Promise.ANNOUNCE_DURABLE, "epoch=0", "inside it"),
    through.ListsWhatItWrote: (Promise.NOTHING_TO_UNDO, "handle='all'", ""),
}


def test_a_kit_that_could_not_kill_anything_inside_a_call_fails_itself(check: Sinks) -> None:
    with raises(ConfigError, "no-line-ran"):
        check(SqliteSink, modules=["somewhere.else"])


def test_a_sink_of_a_kind_that_the_kit_does_not_know_is_told_so(check: Sinks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(conformance_of_sinks.KINDS, SinkKind.TWO_PHASE)
    with raises(ConfigError, "sink-kind-unknown"):
        check(SqliteSink)


def test_promises_that_went_unchecked_and_calls_that_were_not_struck_make_no_report() -> None:
    book = Book()
    with raises(ConfigError, "promises-unchecked"):
        passed("a sink", book, [Promise.VERIFY], 1.0)
    book.checked[Promise.VERIFY] += 1
    book.struck("commit").before += 1
    with raises(ConfigError, "nothing-shown"):
        passed("a sink", book, [Promise.VERIFY], 1.0)


def test_the_page_for_connector_authors_shows_the_examples_as_they_are() -> None:
    page = (EXAMPLES.parent / "connectors.md").read_text()
    examples = sorted(EXAMPLES.glob("*sqlite*.py"))
    assert len(examples) == 3
    for example in examples:
        assert example.read_text().strip() in page, example
    for promise in re.findall(r"^ +\d+ x  (.+)$", page, re.MULTILINE):
        assert promise in {p.value for p in Promise}


def test_the_kit_needs_no_pytest() -> None:
    code = "import sys, onefold.core.testing; assert not {'pytest', '_pytest'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture(scope="module")
def shared() -> Iterator[Processes]:
    """One helper process for all of the wrong sinks: most of the time of a short check goes into starting it."""
    with Processes(("broken_sinks", "write_through_sinks", "sqlite_sink", "sqlite_staged_sink")) as processes:
        yield processes


@pytest.mark.slow
@pytest.mark.parametrize("cls", WRONG, ids=lambda cls: cls.__name__)
def test_a_wrong_sink_fails_by_the_promise_that_it_breaks(
    check: Sinks, shared: Processes, monkeypatch: pytest.MonkeyPatch, cls: type[SqliteSink]
) -> None:
    monkeypatch.setattr(conformance_of_sinks, "Processes", lambda _modules: contextlib.nullcontext(shared))
    promise, seen, crash = WRONG[cls]
    with pytest.raises(BrokenPromise) as caught:
        check(cls)
    error = caught.value
    print(error)
    assert error.promise is promise
    assert seen in error.seen
    assert error.crash.startswith(crash) if crash else "inside" not in error.crash
    for text in (error.promise.value, error.call, error.crash, error.expected, error.seen):
        assert text in str(error)
