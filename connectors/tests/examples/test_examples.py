"""The ready pipelines of connectors/examples, without servers. With them they run in integration-tests/daemon."""

from __future__ import annotations

import importlib.util
from decimal import Decimal
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest

from onefold.pipeline import read

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted(EXAMPLES.glob("*/*.toml"))
ADDRESSES = {
    "KAFKA": "localhost:9092",
    "POSTGRES": "postgresql://u@localhost/d",
    "HBASE": "localhost:9090",
    "MIRROR": "sqlite:////srv/mirror/mirror.db",
}


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_a_pipeline_that_is_named_as_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, address in ADDRESSES.items():
        monkeypatch.setenv(name, address)
    assert read(str(path)).name == path.stem


def test_the_sample_data_are_what_the_script_writes() -> None:
    samples = loaded(EXAMPLES / "samples.py")
    assert {*samples.SAMPLES} == {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.glob("*/*.jsonl")}
    for name in samples.SAMPLES:
        assert (EXAMPLES / name).read_text() == samples.sample(name)


def test_amounts_in_euro_are_exact_and_null_of_an_unknown_currency() -> None:
    in_euro = loaded(EXAMPLES / "enrich/functions.py").in_euro
    amounts = pa.array([Decimal("1.50"), Decimal("0.02"), Decimal("100.00"), None], pa.decimal128(12, 2))
    (found,) = in_euro(pa.record_batch({"currency": ["EUR", "USD", "XXX", "EUR"], "amount": amounts}))
    assert found["euro"].to_pylist() == [Decimal("1.50"), Decimal("0.02"), None, None]
    assert found.schema.field("euro").type == pa.decimal128(14, 2)
