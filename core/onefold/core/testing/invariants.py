"""The invariants, which are the core's own: `onefold verify` judges users' data by them."""

from onefold.core.invariants import (
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

__all__ = [
    "INVARIANTS",
    "AtomicEpoch",
    "Chain",
    "Decision",
    "Evidence",
    "FencedNeverDecides",
    "Glimpse",
    "Invariant",
    "NoDuplicate",
    "NoLoss",
    "NothingInDoubt",
    "ResolveOnce",
    "Transition",
    "violations",
]
