"""For tests: invariants by name, models of store and sinks, a simulator, mutants for it, and the proof made of them."""

from onefold.core.invariants import (
    INVARIANTS,
    AtomicEpoch,
    Decision,
    Evidence,
    FencedNeverDecides,
    Invariant,
    NoDuplicate,
    NoLoss,
    NothingInDoubt,
    Observation,
    ResolveOnce,
    Transition,
    UnbrokenChain,
    violations,
)
from onefold.core.testing.conformance import (
    BrokenPromise,
    ConformanceReport,
    Promise,
    check_aggregator,
    check_sink,
    check_source,
)
from onefold.core.testing.proof.bounds import BOUNDS, DEEP, DEFAULT, ONE_FAULT, Bound
from onefold.core.testing.proof.mutants import MUTANTS, Mutant
from onefold.core.testing.proof.prove import Caught, Proof, catch_mutants, prove
from onefold.core.testing.proof.subject import Subject, load
from onefold.core.testing.simulator.faults import Fault
from onefold.core.testing.simulator.model_store import ModelStore
from onefold.core.testing.simulator.models import (
    ModelLastResourceSink,
    ModelSink,
    ModelTransaction,
    ModelTwoPhaseSink,
    ModelWriteThroughSink,
)
from onefold.core.testing.simulator.simulator import (
    CONFIGURATIONS,
    Failure,
    Report,
    SimulatedRun,
    SimulationPlan,
    explore,
    simulate,
)

__all__ = [
    "BOUNDS",
    "CONFIGURATIONS",
    "DEEP",
    "DEFAULT",
    "INVARIANTS",
    "MUTANTS",
    "ONE_FAULT",
    "AtomicEpoch",
    "Bound",
    "BrokenPromise",
    "Caught",
    "ConformanceReport",
    "Decision",
    "Evidence",
    "Failure",
    "Fault",
    "FencedNeverDecides",
    "Invariant",
    "ModelLastResourceSink",
    "ModelSink",
    "ModelStore",
    "ModelTransaction",
    "ModelTwoPhaseSink",
    "ModelWriteThroughSink",
    "Mutant",
    "NoDuplicate",
    "NoLoss",
    "NothingInDoubt",
    "Observation",
    "Promise",
    "Proof",
    "Report",
    "ResolveOnce",
    "SimulatedRun",
    "SimulationPlan",
    "Subject",
    "Transition",
    "UnbrokenChain",
    "catch_mutants",
    "check_aggregator",
    "check_sink",
    "check_source",
    "explore",
    "load",
    "prove",
    "simulate",
    "violations",
]
