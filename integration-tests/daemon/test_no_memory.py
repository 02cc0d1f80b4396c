"""`onefold run` where memory runs out, in Spark's JVM or in its workers: a clear end, and the next start is exact."""

from __future__ import annotations

import pytest
from harness.daemons import SQL, Start, is_whole, rows, wait_for_rows, write
from harness.support import Rig

from onefold.core import Retriable

pytestmark = [pytest.mark.servers, pytest.mark.slow]
HUGE = "[transform]\nsql = \"SELECT id, n + 0 * length(repeat('x', 400000000 + CAST(id AS INT))) AS n FROM source\"\n"


def test_a_jvm_without_memory_ends_the_process_as_what_may_pass_and_the_next_start_is_exact(
    rig: Rig, start: Start
) -> None:
    rig.put(1000)
    path = write(rig, HUGE)
    path.write_text(f'{path.read_text()}settings = {{ "spark.driver.memory" = "512m" }}\n')
    ended = start(path)
    assert ended.wait() == Retriable.exit_code, ended.text()
    assert ended.says("jvm-gone") and "spark.driver.memory" in ended.text()
    assert rows(rig) == []
    path.write_text(path.read_text().replace(HUGE, SQL))
    again = start(path)
    wait_for_rows(rig, again, 1000)
    again.stop()
    assert rows(rig) == sorted(rig.sent) and is_whole(rig)
