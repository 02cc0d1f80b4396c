"""compose/docker-compose.yml holds to what docs/containers.md says of it."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from onefold.pipeline import Pipeline, read

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "compose"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "docker-compose.yml").read_text())["services"]
ONCE = {"secrets", "topics", "samples"}  # they end by themselves
ALWAYS = sorted(SERVICES.keys() - ONCE)
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
STAGES = dict(re.findall(r"^FROM \S+ AS (\w+)\n(.*?)(?=^FROM |\Z)", (FOLDER / "Dockerfile").read_text(), re.M | re.S))
MIB_AT_MOST = 8 * 1024
MIB = {"m": 1, "g": 1024}


def mounts(service: str) -> dict[str, str]:
    """What is mounted, by its place in the container."""
    plain = (re.sub(r"\$\{\w+:-([^}]+)\}", r"\1", mount) for mount in SERVICES[service].get("volumes", ()))
    return {mount.split(":")[1]: mount for mount in plain}


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_has_rights_that_it_does_not_need(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "pid", "ipc", "userns_mode", "devices"} & service.keys()
    assert service.get("cap_add", []) == (["CHOWN"] if name == "secrets" else [])
    assert all("docker.sock" not in mount for mount in mounts(name).values())


@pytest.mark.parametrize("name", SERVICES)
def test_only_the_service_without_a_network_runs_as_root(name: str) -> None:
    service = SERVICES[name]
    if name == "secrets":
        assert service["user"] == "0:0"
        assert service["network_mode"] == "none"
    else:
        assert "user" not in service
        if "build" in service:  # Grafana's image is its makers'
            assert re.search(r"^USER (?!root|0)\w+$", STAGES[service["build"]["target"]], re.M)


@pytest.mark.parametrize("name", SERVICES)
def test_each_image_is_of_one_version_and_ours_are_never_pulled(name: str) -> None:
    service = SERVICES[name]
    if "build" in service:
        assert service["image"] == f"onefold/{service['build']['target']}:{VERSION}"
        assert service["pull_policy"] == "never"
        assert (FOLDER / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    else:
        assert re.fullmatch(r"\$\{\w+:-[\w/]+:\d+\.\d+\.\d+\}", service["image"]), "one that a digest can stand for"


@pytest.mark.parametrize("name", ALWAYS)
def test_each_server_says_whether_it_is_healthy(name: str) -> None:
    service = SERVICES[name]
    assert "healthcheck" in service or "HEALTHCHECK" in STAGES[service["build"]["target"]]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_waits_for_what_it_needs_until_that_is_ready(name: str) -> None:
    for other, how in SERVICES[name].get("depends_on", {}).items():
        assert how == {"condition": "service_completed_successfully" if other in ONCE else "service_healthy"}


def test_servers_are_started_again_and_the_daemon_starts_itself_again() -> None:
    assert {SERVICES[name]["restart"] for name in ALWAYS if name != "onefold"} == {"unless-stopped"}
    assert {SERVICES[name]["restart"] for name in [*ONCE, "onefold"]} == {"no"}


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_is_published_beyond_this_machine(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", ()))


def test_without_a_profile_only_the_status_page_is_published_and_all_fits_8_gb() -> None:
    plain = {name: service for name, service in SERVICES.items() if "profiles" not in service}
    assert [name for name in plain if "ports" in plain[name]] == ["onefold"]
    limits = [re.fullmatch(r"(\d+)([mg])", plain[name]["mem_limit"]) for name in plain if name not in ONCE]
    assert sum(int(limit[1]) * MIB[limit[2]] for limit in limits if limit) <= MIB_AT_MOST
    assert all(limits)


@pytest.mark.parametrize("name", SERVICES)
def test_no_password_stands_in_the_environment(name: str) -> None:
    for key, value in SERVICES[name].get("environment", {}).items():
        if re.search("PASSWORD|TOKEN|SECRET", key):
            assert value.startswith("/run/secrets/")


@pytest.mark.parametrize("name", SERVICES)
def test_secrets_are_mounted_for_reading_only(name: str) -> None:
    mount = mounts(name).get("/run/secrets")
    assert mount in ({"secrets:/run/secrets"} if name == "secrets" else {None, "secrets:/run/secrets:ro"})


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_mounted_from_the_checkout_is_there_and_cannot_be_written(name: str) -> None:
    for mount in mounts(name).values():
        if mount.startswith("."):
            assert (FOLDER / mount.split(":")[0]).exists()
            assert mount.endswith(":ro")


@pytest.mark.parametrize("command", ["docker compose", "docker-compose"])
def test_both_generations_of_compose_read_the_file(command: str) -> None:
    compose = command.split()
    if (
        shutil.which(compose[0]) is None
        or subprocess.run([*compose, "version"], capture_output=True, check=False).returncode
    ):
        pytest.skip(f"{command} is not here")
    asked = [
        *compose,
        "--file",
        "docker-compose.yml",
        "--profile",
        "monitoring",
        "--profile",
        "samples",
        "config",
        "--services",
    ]
    found = subprocess.run(asked, cwd=FOLDER, capture_output=True, text=True, timeout=60, check=True)
    assert set(found.stdout.split()) == SERVICES.keys()
    assert found.stderr == ""


@pytest.fixture
def pipelines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Pipeline]:
    """The daemon's, as its environment has them."""
    (tmp_path / "postgres-password").write_text("of-the-test\n")
    for name in ("KAFKA", "POSTGRES", "HBASE"):
        monkeypatch.setenv(name, SERVICES["onefold"]["environment"][name])
    for file in (FOLDER / "pipelines").iterdir():
        text = file.read_text().replace("/run/secrets/", f"{tmp_path}/")
        (tmp_path / file.name).write_text(text)
    return [read(str(file)) for file in sorted(tmp_path.glob("*.toml"))]


def test_the_pipelines_share_the_cluster_and_keep_their_state_in_volumes(pipelines: list[Pipeline]) -> None:
    assert [pipeline.name for pipeline in pipelines] == ["enrich", "orders", "profile"]
    for pipeline in pipelines:
        assert pipeline.spark.master == "spark://spark-master:7077"
        assert pipeline.spark.settings == pipelines[0].spark.settings
        assert pipeline.checkpoint.startswith("/var/lib/onefold/")
        assert "@postgres/onefold" in pipeline.store_url
    for name in ("onefold", "spark-worker-1", "spark-worker-2"):
        assert mounts(name)["/var/lib/onefold"] == "state:/var/lib/onefold"


def test_their_topics_are_made_before_they_start(pipelines: list[Pipeline]) -> None:
    made = set(SERVICES["topics"]["command"].split()[2:])
    assert {topic for pipeline in pipelines for topic in pipeline.topic.topics} | {"enriched"} == made
    assert SERVICES["onefold"]["depends_on"]["topics"] == {"condition": "service_completed_successfully"}


def test_the_pipelines_function_is_the_examples() -> None:
    example = (ROOT / "connectors/examples/enrich/functions.py").read_text()
    assert (FOLDER / "pipelines/functions.py").read_text() == example.replace("enrich-arrow.toml", "enrich.toml")
