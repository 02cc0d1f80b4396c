"""onefold.testing where no container engine is asked: what it says, what it costs, whom labels name."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness.errors import raises

from onefold.core import ConfigError
from onefold.testing import ContainerError, ExternalServer, Network, PostgresContainer, ServerKind, Servers, server_kind
from onefold.testing.containers.cut import _rules
from onefold.testing.containers.engine import engine
from onefold.testing.containers.network import _free_subnets, _interfaces
from onefold.testing.containers.owner import OWNER_LABEL, is_left_over, labels


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    asked = [sys.executable, "-c", code]
    return subprocess.run(
        asked, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # docker's client forgets its socket
def test_without_an_engine_one_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path / 'nowhere'}")
    engine.cache_clear()
    with raises(ContainerError, "engine-missing") as caught:
        Network().start()
    assert caught.value.code == "engine-missing"
    del caught
    gc.collect()


def test_the_plugin_imports_nothing_of_onefolds_own_at_the_start_of_a_suite() -> None:
    shown = "print(sorted(name for name in sys.modules if name.startswith(('onefold', 'docker'))))"
    assert (
        python(f"import sys, onefold.testing.plugin; {shown}").stdout.strip()
        == "['onefold', 'onefold.testing', 'onefold.testing.plugin']"
    )


def test_a_live_process_owns_what_it_made_and_a_dead_one_leaves_it_over() -> None:
    mine = labels()[OWNER_LABEL]
    assert not is_left_over(mine)
    code = "from onefold.testing.containers.owner import labels, OWNER_LABEL; print(labels()[OWNER_LABEL])"
    assert is_left_over(python(code).stdout.strip())
    machine, pid, born = mine.split(" ", 2)
    assert is_left_over(f"{machine} {pid} {born}0"), "another process that had this pid"
    assert not is_left_over(f"elsewhere {pid} {born}0"), "a pid means nothing on another machine"


def test_labels_of_ones_own_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_LABELS", "team=data,run=7")
    assert labels().items() >= {("team", "data"), ("run", "7")}


def test_a_cut_drops_what_passes_between_two_and_never_what_a_server_says_to_itself() -> None:
    assert _rules("10.0.0.7", "incoming") == ["INPUT ! -i lo -s 10.0.0.7 -j DROP"]
    assert _rules("10.0.0.7", "outgoing") == ["OUTPUT ! -o lo -d 10.0.0.7 -j DROP"]
    assert _rules(None, "both") == ["INPUT ! -i lo -j DROP", "OUTPUT ! -o lo -j DROP"]
    with raises(ConfigError, "cut-direction", "'inward'"):
        _rules(None, "inward")  # type: ignore[arg-type]  # it would cut nothing


def test_a_standby_in_another_network_than_its_primary_is_refused() -> None:
    primary = PostgresContainer(Network())
    assert PostgresContainer(primary=primary).network is primary.network
    with raises(ConfigError, "primary-out-of-reach"):
        PostgresContainer(Network(), primary=primary)


def test_a_subnet_is_taken_that_no_network_of_this_machine_overlaps() -> None:
    chosen = _free_subnets()
    assert len(set(chosen)) == 20
    assert not any(subnet.overlaps(other) for subnet in chosen for other in _interfaces())


def test_the_switch_knows_three_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEFOLD_SERVERS", raising=False)
    assert server_kind() is ServerKind.LOCAL
    monkeypatch.setenv("ONEFOLD_SERVERS", "containers")
    assert server_kind() is ServerKind.CONTAINERS
    monkeypatch.setenv("ONEFOLD_SERVERS", "docker")
    with raises(ConfigError, "server-kind-unknown"):
        server_kind()


def test_external_servers_are_the_ones_that_variables_name_and_nobody_strikes_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ONEFOLD_SERVERS", "external")
    monkeypatch.setenv("ONEFOLD_POSTGRES", "postgresql://me@db/shop?sslmode=require")
    monkeypatch.delenv("ONEFOLD_KAFKA", raising=False)
    servers = Servers(lambda _name: tmp_path)
    with servers.running("postgres") as server:
        assert isinstance(server, ExternalServer)
        assert server.url_of("other") == "postgresql://me@db/other?sslmode=require"
        assert server.status().address == server.url
        for strike in (server.kill, server.hbase.stop, server.thrifts[0].pause, server.workers[0].kill):
            with pytest.raises(pytest.skip.Exception, match="not ours to strike"):
                strike()
        with pytest.raises(pytest.skip.Exception, match="not ours to strike"):
            server.cut(None, direction="outgoing")
        with pytest.raises(pytest.skip.Exception, match="not ours to strike"):
            server.thrift1.start()
    with pytest.raises(pytest.skip.Exception, match="ONEFOLD_KAFKA names no server"), servers.running("kafka"):
        pass
    with pytest.raises(pytest.skip.Exception, match="a server of its own"):
        servers.postgres()


def test_a_package_that_is_missing_is_named_with_its_extra() -> None:
    code = "import sys; sys.modules['docker'] = None; from onefold.testing import Servers; Servers(print).kafka()"
    said = python(code, ONEFOLD_SERVERS="containers").stderr
    assert "is not installed: install onefold[testing] (in its checkout: pip install '.[testing]')" in said


SUITE = """
import pytest
only = pytest.mark.only_with_servers
@only("containers", reason="cuts")
def test_a_kind(): pass
@only("container", reason="cuts")
def test_no_kind(): pass
@only(reason="cuts")
def test_none(): pass
"""


@pytest.mark.parametrize(
    ("servers", "outcomes", "says"),
    [
        ("containers", "1 passed, 2 errors", "only_with_servers names some of local, containers, external"),
        ("local", "1 skipped, 2 errors", "cuts: only with ONEFOLD_SERVERS=containers"),
        ("container", "3 errors", "ONEFOLD_SERVERS=container is no kind of servers"),
    ],
)
def test_a_word_that_is_none_fails_a_marked_test_instead_of_skipping_it_for_ever(
    tmp_path: Path, servers: str, outcomes: str, says: str
) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "onefold.testing.plugin", "--rootdir", str(tmp_path)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    ran = subprocess.run(
        [*command, str(tmp_path)],
        env={**environment, "ONEFOLD_SERVERS": servers, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert outcomes in ran.stdout
    assert says in ran.stdout
