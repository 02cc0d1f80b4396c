"""The API of a process, from before its Spark is up until its pipelines are over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry

from onefold.daemon.api.app import make_app
from onefold.daemon.api.listening import Listening, Server
from onefold.daemon.control import Controls
from onefold.daemon.watch.metrics import Epochs, registry_of
from onefold.daemon.watch.watch import Watch

__all__ = ["answering"]


@contextmanager
def answering(controls: Controls, listening: Listening) -> Iterator[str]:
    """Its URL. Raises ConfigError where its port is not free."""
    listener = listening.bind()
    with listener.socket:
        registry = CollectorRegistry()
        observe = Epochs(registry).observe
        watches = [Watch(control, observe) for control in controls]
        registry_of(watches, registry)
        server = Server(listener, make_app(watches, registry, listening.token, listening.hosts))
        for watch in watches:
            watch.start()
        server.start()
        try:
            yield listener.url
        finally:
            server.stop()
            for watch in watches:
                watch.stop()
