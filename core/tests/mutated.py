"""A pytest plugin: unit tests import what is simulated with the mistake that ONEFOLD_MUTANT names in it."""

from __future__ import annotations

import os
import sys

from onefold.core.testing import load
from onefold.core.testing.proof.mutants import UNIT_MUTANTS

mutant = next(mutant for mutant in UNIT_MUTANTS if mutant.name == os.environ["ONEFOLD_MUTANT"])
sys.modules.update(load(*mutant.patches).modules)
