"""Subtasks in a fixed order, over channels that hold little: nobody waits for ever, and each does the same again."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from onefold.core import TaskId
from onefold.core.source import Part
from onefold.core.values.batches import empty_batch
from onefold.core.writing.dead_letters import BAD_COLUMNS
from onefold.engine.dataflow import cutting, outbound
from onefold.engine.dataflow.chains import Plan, plan
from onefold.engine.dataflow.items import Barrier, Effect, Send
from onefold.engine.dataflow.subtask import Subtask
from onefold.engine.logics.endpoints import ReadingLogic
from onefold.engine.logics.logic import BaseLogic
from onefold.engine.logics.logic_factory import TransformingLogic
from onefold.flow.graph.nodes import Edge, Graph, Node, Shipping
from onefold.flow.graph.operators import Filtering, Reading, Uniting

ROWS = pa.schema({"id": pa.int64(), "account": pa.int64()})
WORKERS, FULL_BYTES = 3, 200
EVERY = Filtering(pc.field("id") >= 0)


def diamond() -> Plan:
    """Two exchanges behind each other, and a third and fourth that unite what comes of each."""
    nodes = (
        Node(0, Reading(cast(Any, SimpleNamespace(name="s"))), (), ROWS),
        Node(1, EVERY, (Edge(0, Shipping.KEYED, ("account",)),), ROWS),
        Node(2, EVERY, (Edge(1, Shipping.KEYED, ("id",)),), ROWS),
        Node(3, Uniting(), (Edge(2, Shipping.KEYED, ("account",)), Edge(0, Shipping.REBALANCE)), ROWS),
    )
    return plan(Graph("shop", nodes))


class Recording(BaseLogic):
    """Notes each batch that comes, and gives it on."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def take(self, batch: Any, port: int) -> Iterator[Any]:
        self.seen.append([port, *batch["id"].to_pylist()])
        yield None, batch


def run(chance: random.Random, steps_max: int = 50_000) -> list[list[list[int]]]:
    """What the last subtasks see of one epoch, in some order of events; a sender waits where a channel is full."""
    flow, recording = diamond(), [Recording() for _ in range(WORKERS)]
    subtasks = [
        [
            Subtask(
                chain,
                index,
                WORKERS,
                128,
                {
                    node.number: ReadingLogic(None)
                    if node.number == 0
                    else recording[index]
                    if node.number == 3
                    else TransformingLogic(node)
                    for node in chain.nodes
                },
                in_order=True,
            )
            for chain in flow.chains
        ]
        for index in range(WORKERS)
    ]
    none, halted = empty_batch(BAD_COLUMNS), dict[Subtask, Iterator[Effect]]()
    every = [subtask for of in subtasks for subtask in of]
    for subtask in every:
        subtask.open(1, TaskId("shop", 1, 1, 0, uuid.UUID(int=0)))
    for index, of in enumerate(subtasks):
        ids = [*range(index * 100, index * 100 + 90)]
        rows = pa.RecordBatch.from_pydict({"id": ids, "account": [0 if n % 5 else n for n in ids]}, ROWS)
        at = 0
        while at < len(ids):  # as the source happens to give them
            size = chance.randint(1, 20)
            of[0].put(None, index, Part(rows.slice(at, size), none))
            at += size
        of[0].put(None, index, Barrier(1))

    def is_full(exchange: int, to: int, sender: int) -> bool:
        target = flow.chain_of(flow.exchanges[exchange].target).number
        return subtasks[to][target].queued_bytes(exchange, sender) > FULL_BYTES

    for _ in range(steps_max):
        places = [(index, subtask) for index, of in enumerate(subtasks) for subtask in of]
        able = [
            (index, subtask)
            for index, subtask in places
            if (subtask in halted or subtask.is_ready)
            and not any(is_full(exchange.number, to, index) for exchange, to in subtask.receivers)
        ]
        if not able:
            break
        index, subtask = chance.choice(able)
        effects = halted.pop(subtask, None) or subtask.step()
        for effect in effects:
            if isinstance(effect, Send):
                target = flow.chain_of(flow.exchanges[effect.exchange].target).number
                subtasks[effect.to][target].put(effect.exchange, index, effect.item)
                if is_full(effect.exchange, effect.to, index):
                    halted[subtask] = effects
                    break
    assert not halted
    assert all(subtask._run == 2 for subtask in every), "each has ended the epoch"
    return [each.seen for each in recording]


def test_nobody_waits_in_a_circle_and_each_subtask_has_the_same_batches_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "CUT_ROWS", 7)
    monkeypatch.setattr(outbound, "_TURN_ROWS", 10)
    found = [run(random.Random(seed)) for seed in range(8)]
    assert found == [found[0]] * 8
    assert sum(len(batch) - 1 for seen in found[0] for batch in seen) == 2 * WORKERS * 90
