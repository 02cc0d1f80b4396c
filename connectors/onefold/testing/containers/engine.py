"""The container engine, Docker's or one that speaks as it does: of DOCKER_HOST, Docker's context, or this machine."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import docker.errors
import requests
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient

from onefold.testing.container_errors import ContainerError
from onefold.testing.containers.owner import OWNER_LABEL, SESSION_LABEL, is_left_over, labels


@functools.cache
def engine() -> DockerClient:
    """The engine's client, one of this process. Removes what dead processes of this machine have left in the engine.

    Raises ContainerError where there is none, or where this user may not use it.
    """
    try:
        client = DockerClient()
        client.client.ping()
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise _unreachable(error) from error
    _remove_left_over(client)
    atexit.register(_at_exit, os.getpid())
    return client


def is_available() -> bool:
    """Whether there is an engine that this process may use."""
    try:
        engine()
    except ContainerError:
        return False
    return True


def image_of(name: str) -> str:
    """The image of that name, `kafka` for one: `onefold/kafka` of this version of onefold. Raises if it is not here."""
    image = f"onefold/{name}:{version('onefold')}"
    try:
        engine().client.images.get(image)
    except docker.errors.ImageNotFound:
        raise ContainerError(
            "image-missing",
            f"the image {image} is not here: build it with `make images` in a checkout of onefold (docs/containers.md)",
        ) from None
    return image


def create(
    image: str,
    command: list[str] | None,
    environment: Mapping[str, str],
    files: Mapping[str, str],
    ports: Mapping[str, Any],
    volumes: Mapping[str, str],
    **given: Any,
) -> DockerContainer:
    """A container that runs, and that is removed when this process ends. `files` are texts by path, put into it before
    it starts; `volumes` are folders of the engine's machine, by path in the container; `ports` and `given` are what
    docker's own client takes."""
    container = DockerContainer(image, env=dict(environment)).with_kwargs(labels=labels(), **given)
    container.image = image  # without a prefix that testcontainers is told for images of a registry
    container.ports.update(ports)
    for path, folder in volumes.items():
        container.with_volume_mapping(folder, path, "rw")
    if command is not None:
        container.with_command(command)
    for path, text in files.items():
        container.with_copy_into_container(text.encode(), path, 0o444)
    try:
        with _without_ryuk():
            return container.start()
    except BaseException:
        container.stop()
        raise


@contextmanager
def _without_ryuk() -> Iterator[None]:
    """testcontainers' own cleaner is one more image to pull, and a container that may use the engine: labels do.

    The setting is put back, for containers of somebody else's in this process."""
    before = testcontainers_config.ryuk_disabled
    testcontainers_config.ryuk_disabled = True
    try:
        yield
    finally:
        testcontainers_config.ryuk_disabled = before


def remove_all() -> None:
    """Removes every container and network that this process made and that is still there."""
    _remove(engine(), {"label": f"{SESSION_LABEL}={labels()[SESSION_LABEL]}"}, left_over=False)


def _at_exit(pid: int) -> None:
    if pid == os.getpid():  # and not a child that was forked
        with contextlib.suppress(docker.errors.DockerException, requests.RequestException):
            remove_all()
        engine().client.close()


def _remove_left_over(client: DockerClient) -> None:
    _remove(client, {"label": OWNER_LABEL}, left_over=True)


def _remove(client: DockerClient, found_by: dict[str, str], *, left_over: bool) -> None:
    for container in client.client.containers.list(all=True, filters=found_by, ignore_removed=True):
        if not left_over or is_left_over(container.labels[OWNER_LABEL]):
            with contextlib.suppress(docker.errors.APIError):  # another process removes it as well
                container.remove(force=True, v=True)
    for network in client.client.networks.list(filters=found_by):
        if not left_over or is_left_over(network.attrs["Labels"][OWNER_LABEL]):
            with contextlib.suppress(docker.errors.APIError):
                network.remove()


def _unreachable(error: BaseException) -> ContainerError:
    at = os.environ.get("DOCKER_HOST", "its usual socket")
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, PermissionError) or "Permission denied" in str(cause):
            return ContainerError(
                "engine-not-permitted",
                f"there is a container engine at {at}, and this user may not use it: add the user to its group"
                " (`docker`), or run as one who may",
            )
        cause = cause.__cause__ or cause.__context__
    return ContainerError(
        "engine-missing",
        f"no container engine answers at {at} ({error}): start one, set DOCKER_HOST to one, or take local servers"
        " (ONEFOLD_SERVERS=local)",
    )
