"""In which forms the processes of a torture run take turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onefold.trials.torture.torture_run import _forms
from onefold.trials.torture.torture_settings import TortureSettings
from onefold.trials.workload.workload_settings import Job


@pytest.mark.parametrize(
    ("given", "workers"),
    [
        ({}, [2, 3]),
        ({"mechanism": "microbatch"}, [2, 3]),
        ({"alignment": "unaligned"}, [2]),
        ({"mechanism": "transaction"}, [2]),
    ],
)
def test_workers_change_where_all_that_is_kept_can_be_shared_out_anew(given: Any, workers: list[int]) -> None:
    job = Job("kafka", "", "checkpoint", "", ("staged",), 10, exactly_once=True)
    ((*turns,),) = _forms(TortureSettings(runtime="engine", **given), job, Path("x"), None)
    assert [job.workers for job in turns] == workers
