"""Where a simulated pipeline runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from onefold.core.positions import Positions
from onefold.core.testing.simulator.model_checkpoint import Checkpoint
from onefold.core.testing.simulator.model_store import ModelStore


@dataclass
class Host:
    """A host's store, its checkpoint, and where the pipeline first began to read there."""

    store: ModelStore
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    first_start: Positions | None = None
