"""Operators without state: filter, select, functions of batches and of rows, union."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from onefold.engine.logics.logic import Input, Output, Stateless
from onefold.flow.evaluation import evaluation
from onefold.flow.graph import Node

__all__ = ["TransformingLogic"]


class TransformingLogic(Stateless):
    """What `flow.evaluation` makes of each batch."""

    def __init__(self, node: Node) -> None:
        self._evaluate = evaluation(node)

    def take(self, batch: Input, port: int) -> Iterable[Output]:
        del port
        assert isinstance(batch, pa.RecordBatch)
        return self._evaluate(batch)
