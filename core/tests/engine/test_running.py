"""What a flow's run asks of this machine before it starts."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.core.errors import ConfigError
from onefold.engine.dataflow.alignment import ALIGNED, Alignment
from onefold.engine.dataflow.chains import plan
from onefold.engine.driver.running import FILES_OWN, _allow_files
from onefold.flow.graph.nodes import Edge, Graph, Node, Shipping
from onefold.flow.graph.operators import Reading, Writing

SOURCE = Node(0, Reading(cast(Any, "a source")), (), pa.schema({"id": pa.int64()}), (), "rows")
PLAN = plan(Graph("shop", (SOURCE, Node(1, Writing(cast(Any, None)), (Edge(0, Shipping.REBALANCE),), None))))
NEEDED = 2 * 16 * 15 + 2 * 16 + FILES_OWN


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Those of this process, the newest last."""
    limits = [(NEEDED - 1, resource.RLIM_INFINITY)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    return limits


@pytest.mark.parametrize("hard", [resource.RLIM_INFINITY, NEEDED])
def test_the_sockets_of_many_workers_fit_under_a_limit_that_is_raised_for_them(
    limits: list[tuple[int, int]], hard: int
) -> None:
    limits[:] = [(NEEDED - 1, hard)]
    _allow_files(PLAN, 16, ALIGNED)
    assert limits[1:] == [(NEEDED, hard)]
    _allow_files(PLAN, 16, ALIGNED)
    _allow_files(PLAN, 2, ALIGNED)
    _allow_files(PLAN, 11, Alignment("unaligned"))
    assert len(limits) == 2, "it is raised no further than is needed"


def test_workers_for_whose_sockets_the_limit_is_too_low_are_refused(limits: list[tuple[int, int]]) -> None:
    limits[:] = [(NEEDED - 1, NEEDED - 1)]
    with raises(ConfigError, "too-many-workers", f"{NEEDED}"):
        _allow_files(PLAN, 16, ALIGNED)


USES = """
import sys
from onefold.core.errors import ConfigError
from onefold.engine.driver.running import _check_unused
_check_unused("shop")
if sys.argv[1]:
    from rocksdict import Rdict
    Rdict(sys.argv[1]).close()
try:
    _check_unused("shop")
except ConfigError as error:
    print(error.code)
"""


@pytest.mark.parametrize(("used", "told"), [(True, "rocksdb-in-use\n"), (False, "")])
def test_a_process_that_has_used_rocksdb_forks_no_workers_that_use_it(tmp_path: Path, used: bool, told: str) -> None:
    command = [sys.executable, "-c", USES, str(tmp_path / "db") if used else ""]
    assert subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout == told
