"""Somebody who may write to a pipeline's checkpoint store, where each start writes the ends of a flow in Python."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.errors import raises

from onefold.core import ConfigError
from onefold.flow import Flow
from onefold.pipeline.remembered import UNREADABLE, RememberedFlow, endpoints
from onefold.sinks import HBaseSink, KafkaSink
from onefold.sources import KafkaSource

WRITES = "who may write to a pipeline's checkpoint store"
CLIENT = {"sasl.mechanism": "PLAIN", "sasl.username": "shop", "sasl.password": "s3cret"}
SETTINGS = {
    "settings.kafka": ("kafka:9092", False),
    "settings.client": (CLIENT, True),
    "settings.hbase": ("hbase:9090", False),
}


@pytest.fixture
def text() -> str:
    flow = Flow("orders")
    orders = flow.source(KafkaSource("orders", bootstrap_servers="kafka:9092"), uid="orders")
    orders.sink(KafkaSink("copies", bootstrap_servers="kafka:9092", client_config=CLIENT))
    cells = HBaseSink(servers="hbase:9090", table="cells", row_key="key", family="f", mode="rolling", merge="replace")
    orders.sink(cells)
    found = endpoints(flow, SETTINGS)
    assert found is not None and "s3cret" not in found
    return found


@pytest.mark.attack(
    who=WRITES,
    does="has a flow remembered whose sink has another address, or settings of its client of their own, beside the"
    " file's password",
    gets="nothing: addresses and clients' settings are the file's, and such a text is not read",
)
@pytest.mark.parametrize(
    ("has", "forged"),
    [
        ('"${settings.kafka}"', '"theirs:9092"'),
        ('"${settings.client}"', '{"sasl.password": "${settings.client.sasl.password}"}'),
        ('"${settings.client}"', '{"plugin.library.paths": "/tmp/theirs.so"}'),
        ('"${settings.client}"', '"${HOME}"'),
        ('"${settings.kafka}"', '"${HIDDEN}"'),
        ('"${settings.kafka}"', '"${file:/etc/hostname}"'),
    ],
)
def test_a_store_has_no_secret_sent_elsewhere(
    text: str, has: str, forged: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIDDEN", "kafka:9092")
    assert has in text
    with pytest.raises(UNREADABLE):
        RememberedFlow("orders", text.replace(has, forged), SETTINGS)


@pytest.mark.attack(
    who=WRITES,
    does="has a flow remembered whose sink names a function of a module of theirs",
    gets="a refusal: a store names no code",
)
def test_a_store_names_no_code(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs.py").write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\nf = max\n")
    monkeypatch.chdir(tmp_path)
    assert '"replace"' in text
    with raises(ConfigError, "reference-invalid"):
        RememberedFlow("orders", text.replace('"replace"', '"theirs.py:f"'), SETTINGS)
    assert not (tmp_path / "ran").exists()
