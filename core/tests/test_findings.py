"""Checks are run to their end by doctor, and up to the first error by a start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from harness.errors import raises

from onefold.core.contract import Guarantee, SinkKind
from onefold.core.errors import ConfigError, Damaged, DataLoss, InternalError
from onefold.core.findings import Checks, Finding, Level, passed, tried
from onefold.core.protocol.committer_kinds import check_shared, sole_last_resource

FIRST, SECOND = ConfigError("first", "the first"), ConfigError("second", "the second")


def refuse(error: ConfigError) -> None:
    raise error


def checks(*errors: ConfigError) -> Checks[int]:
    yield Finding(Level.FINE, "begun")
    for error in errors:
        yield from tried(partial(refuse, error))
    return 7


def test_checks_that_find_no_error_have_a_value() -> None:
    assert passed(checks()) == 7


def test_a_start_raises_the_first_error_and_doctor_sees_them_all() -> None:
    with pytest.raises(ConfigError) as caught:
        passed(checks(FIRST, SECOND))
    assert caught.value is FIRST
    assert [f.error for f in checks(FIRST, SECOND)] == [None, FIRST, SECOND]
    assert [f.says for f in checks(FIRST)] == ["begun", "the first [first]"]


def test_what_checks_hold_is_let_go_with_the_error_that_a_start_raises() -> None:
    seen: list[BaseException] = []

    @contextmanager
    def held() -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            seen.append(error)
            raise

    def holding() -> Checks[int]:
        with held():
            return (yield from checks(FIRST))

    with pytest.raises(ConfigError):
        passed(holding())
    assert seen == [FIRST]


def test_a_loss_breaks_its_invariants_and_nothing_but_a_problem_does() -> None:
    assert Finding.of(DataLoss("gone", "gone")).breaks == ("no-loss",)
    assert Finding.of(Damaged("gone", "gone")).breaks == ("no-loss", "resolve-once")
    assert Finding.of(FIRST).breaks == ()
    with pytest.raises(InternalError):
        Finding(Level.UNCHECKED, "not known", error=FIRST)


def test_one_sink_may_decide_and_the_store_is_in_its_database() -> None:
    promises = {
        "a": Guarantee("staged", SinkKind.LAST_RESOURCE, True),
        "b": Guarantee("two_phase", SinkKind.TWO_PHASE, False),
    }
    assert sole_last_resource(promises) == "a" and sole_last_resource({"b": promises["b"]}) is None
    with raises(ConfigError, "several-last-resources"):
        sole_last_resource({**promises, "c": promises["a"]})
    check_shared("a", promises["a"], is_shared=True)
    with raises(ConfigError, "store-elsewhere"):
        check_shared("a", promises["a"], is_shared=False)


def test_a_sink_that_can_be_two_phase_is_named_with_its_setting() -> None:
    promise = Guarantee("staged", SinkKind.LAST_RESOURCE, True, two_phase_by="delivery='two_phase'")
    without = Guarantee("staged", SinkKind.LAST_RESOURCE, True)
    with raises(ConfigError, "several-last-resources", "'b'", "delivery='two_phase'"):
        sole_last_resource({"a": without, "b": promise})
    with raises(ConfigError, "store-elsewhere", "delivery='two_phase'"):
        check_shared("b", promise, is_shared=False)
