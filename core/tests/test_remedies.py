"""The ways out that errors name are such as can be followed on the runtime that they are read on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onefold.core.contract import EpochRecord, EpochState, LedgerEntry
from onefold.core.errors import OnefoldError
from onefold.core.findings import Target
from onefold.core.positions import Positions, Range
from onefold.core.protocol.binding import of_another_store
from onefold.core.protocol.effects import EpochRequest, StoreFacts
from onefold.core.protocol.recovery import adoption, check_ledger, check_setting, place, resolve
from onefold.core.protocol.request_checks import check_stateless
from onefold.core.values.remedies import (
    FLOW,
    SPARK_FLOW,
    WRITER,
    Remedies,
    by_command,
    by_program,
    in_words_of,
    remedies,
)
from onefold.store.job.targets import _refuse_lost

AT = Positions.of({"t/0": 5})
LEDGER = LedgerEntry(1, 1, 1, AT, "store")
FACTS = StoreFacts("store", 1, None, None, (), None)
BEGUN = EpochRecord("p", 1, 1, EpochState.OPEN, Range(Positions(), AT), 1, "q", 1, "f", (), ("s",), ("s",))
OTHER_CUT = EpochRequest(Range(Positions(), Positions.of({"t/0": 4})), "q", 1, "f", ("s",), ("s",))


def errors() -> list[str]:
    """The texts of all errors of the protocol that name a way out by a call, a checkpoint or a setting."""
    damaged = replace(BEGUN, state=EpochState.DAMAGED)
    begun = replace(FACTS, unfinished=(BEGUN,))
    calls = [
        lambda: check_ledger(FACTS, "s", LEDGER),
        lambda: check_ledger(replace(FACTS, last=BEGUN, unfinished=(BEGUN,)), "s", replace(LEDGER, timestamp_ms=2)),
        lambda: resolve(replace(FACTS, unfinished=(damaged,)), {"s": None}),
        lambda: adoption(FACTS, {"s": LEDGER, "other": replace(LEDGER, epoch=2)}),
        lambda: check_setting(FACTS, Positions().with_setting("earliest"), "latest"),
        lambda: place(begun, None, OTHER_CUT),
        lambda: check_stateless("p", keeps_state=True),
        lambda: _refuse_lost("p", "s", 1, None, Target("t", False)),
    ]
    found = [of_another_store("s", replace(LEDGER, epoch=epoch), "mine").message for epoch in (0, 1)]
    for call in calls:
        with pytest.raises(OnefoldError) as raised:
            call()
        found.append(raised.value.message)
    return found


@pytest.mark.parametrize("of", [FLOW, SPARK_FLOW])
def test_a_flow_has_no_pipeline_to_call_and_needs_no_new_checkpoint_on_the_engine(of: Remedies) -> None:
    with in_words_of(of):
        texts = errors()
    assert not [text for text in texts if "pipeline.recover" in text or "pipeline.read" in text]
    assert sum(of.call.partition("{")[0] in text for text in texts) == 7
    if of is FLOW:
        odd = ("checkpoint directory", "starting_offsets='ledger'", "onefold reset")
        assert not [text for text in texts if any(each in text for each in odd)]
    else:
        assert sum("starting_offsets='ledger'" in text for text in texts) == 4
    assert remedies() is FLOW


@pytest.mark.parametrize("of", [FLOW, SPARK_FLOW])
def test_a_pipeline_is_recovered_by_the_command_or_the_program_that_runs_it(of: Remedies) -> None:
    with in_words_of(by_command("the {orders}.toml", of)):
        texts = errors()
    assert sum("run `onefold recover 'the {orders}.toml' --" in text for text in texts) == 7
    assert sum("--accept-damage 1`" in text for text in texts) == 1
    assert sum("run `onefold reset 'the {orders}.toml'`" in text for text in texts) == 2
    assert sum("run `onefold reset 'the {orders}.toml' --rows`" in text for text in texts) == 1
    assert not [text for text in texts if "recover(" in text]
    with in_words_of(by_program(of)):
        assert sum("call pipeline.recover(" in text for text in errors()) == 7


def test_a_writer_of_dataframes_has_no_source_that_could_start_elsewhere() -> None:
    with in_words_of(WRITER):
        texts = errors()
    odd = ("pipeline.", "onefold reset", "starting_offsets='ledger'")
    assert not [text for text in texts if any(each in text for each in odd)]
    assert sum("writer.recover(" in text for text in texts) == 7
