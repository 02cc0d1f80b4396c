"""A pytest plugin: unit tests import the protocol and recovery with the mistake that ONEFOLD_MUTANT names in them."""

from __future__ import annotations

import os
import sys

from onefold.core.testing import load
from onefold.core.testing.mutants import UNIT_MUTANTS

mutant = next(mutant for mutant in UNIT_MUTANTS if mutant.name == os.environ["ONEFOLD_MUTANT"])
subject = load(*mutant.patches)
sys.modules["onefold.core.recovery"], sys.modules["onefold.core.protocol"] = subject.recovery, subject.protocol
