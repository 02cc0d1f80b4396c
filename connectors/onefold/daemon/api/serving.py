"""The API of a process, from before its Spark is up until its pipelines are over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from onefold.daemon.access.guard import Guard
from onefold.daemon.access.proof import Nonces, page_link
from onefold.daemon.api.app import make_app
from onefold.daemon.api.listening import Listening, Server
from onefold.daemon.control import Control
from onefold.daemon.watch.metrics import EpochMeter, registry_of
from onefold.daemon.watch.watch import Watch


@dataclass(frozen=True)
class Answering:
    """Where the API answers. `page` is a link to its page that logs a browser in: a secret."""

    url: str
    page: str


@contextmanager
def answering(controls: Iterable[Control], listening: Listening) -> Iterator[Answering]:
    """Raises ConfigError where its port is not free."""
    listener = listening.bind()
    with listener.socket:
        registry = CollectorRegistry()
        observe = EpochMeter(registry).observe
        watches = [Watch(control, observe) for control in controls]
        registry_of(watches, registry)
        token, nonces = listening.token, Nonces()
        server = Server(listener, Guard(make_app(watches, registry), token, nonces))
        for watch in watches:
            watch.start()
        server.start()
        try:
            yield Answering(listener.url, page_link(listener.url, token, nonces.new()))
        finally:
            server.stop()
            for watch in watches:
                watch.stop()
