"""For tests: the invariants by name, a model store, model sinks, and a simulator that strikes at every step."""

from onefold.core.testing.conformance import BrokenPromise, ConformanceReport, Promise, check_sink, check_store
from onefold.core.testing.faults import Crash, Fault
from onefold.core.testing.invariants import (
    INVARIANTS,
    AtomicEpoch,
    Chain,
    Decision,
    Evidence,
    FencedNeverDecides,
    Glimpse,
    Invariant,
    NoDuplicate,
    NoLoss,
    NothingInDoubt,
    ResolveOnce,
    Transition,
    violations,
)
from onefold.core.testing.model_store import ModelStore
from onefold.core.testing.models import ModelLastResourceSink, ModelSink, ModelTransaction, ModelTwoPhaseSink
from onefold.core.testing.simulator import CONFIGURATIONS, Failure, Plan, Report, Run, explore, simulate

__all__ = [
    "CONFIGURATIONS",
    "INVARIANTS",
    "AtomicEpoch",
    "BrokenPromise",
    "Chain",
    "ConformanceReport",
    "Crash",
    "Decision",
    "Evidence",
    "Failure",
    "Fault",
    "FencedNeverDecides",
    "Glimpse",
    "Invariant",
    "ModelLastResourceSink",
    "ModelSink",
    "ModelStore",
    "ModelTransaction",
    "ModelTwoPhaseSink",
    "NoDuplicate",
    "NoLoss",
    "NothingInDoubt",
    "Plan",
    "Promise",
    "Report",
    "ResolveOnce",
    "Run",
    "Transition",
    "check_sink",
    "check_store",
    "explore",
    "simulate",
    "violations",
]
