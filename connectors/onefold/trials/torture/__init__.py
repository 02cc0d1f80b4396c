"""Real faults on real servers: a pipeline that never ends is struck again and again, comes to rest, and is audited.

A round is some faults, then rest: the faults are over, zombies have ended, the topic is through. Then the named
invariants (`onefold.core.invariants`) are held against what the source, the destinations (`destination`) and the
checkpoint store say. What happened when is in `history.jsonl` (see `history`), for other checkers.
"""

from onefold.trials.torture.torture_run import run_torture
from onefold.trials.torture.torture_settings import TortureSettings

__all__ = ["TortureSettings", "run_torture"]
