"""What somebody sees whose function in a flow is wrong: one text with operator, column or line, and row."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onefold.core import BadRecord, OnefoldError, Terminal
from onefold.engine import Restart
from onefold.flow import Flow
from onefold.sinks import SqlSink
from onefold.sources import FileSource


def failed(folder: Path, function: Callable[[dict[str, Any]], Any]) -> OnefoldError:
    (folder / "in").mkdir()
    (folder / "in/a.json").write_text('{"id": 1, "n": 3}\n{"id": 2, "n": 0}\n')
    flow = Flow("shop")
    orders = flow.source(FileSource(str(folder / "in"), format="json", schema="id long, n long").bounded(), uid="in")
    orders.flat_map(function, schema="id long, n long").sink(SqlSink(f"sqlite:///{folder}/shop.db", "t"))
    with pytest.raises(OnefoldError) as raised:
        flow.run(checkpoint=str(folder / "checkpoint"), restart=Restart(strategy="none"))
    assert len(traceback.extract_tb(raised.value.__traceback__)) <= 3
    assert raised.value.__suppress_context__
    return raised.value


def test_a_function_that_raises_is_named_by_operator_line_and_row(tmp_path: Path) -> None:
    def divided(row: dict[str, Any]) -> Iterator[Any]:
        yield row["id"], 1 // row["n"]

    error = failed(tmp_path, divided)
    line = divided.__code__.co_firstlineno + 1
    assert isinstance(error, Terminal)
    assert f"flat_map-1 has raised ZeroDivisionError at {__file__}:{line} in divided, of the row" in error.message
    assert "{'id': 2, 'n': 0}: integer division or modulo by zero" in error.message


def test_a_value_of_another_type_is_named_by_operator_column_and_row(tmp_path: Path) -> None:
    error = failed(tmp_path, lambda row: [(row["id"], row["n"] / 2)])
    assert isinstance(error, BadRecord)
    assert error.message.startswith("flat_map-1 gives 1.5 in the column 'n' of the row (1, 1.5), and bigint takes int")
