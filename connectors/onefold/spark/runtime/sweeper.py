"""Sweeps on a timer: a zombie may prepare something after the last epoch, and its locks must not stay."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from py4j.protocol import Py4JError

from onefold.core.errors import InternalError, OnefoldError

__all__ = ["Sweeper"]

log = logging.getLogger("onefold")


class Sweeper:
    """A daemon thread that calls `sweep` every `every_s` seconds for as long as `is_active()`, and once after."""

    def __init__(self, sweep: Callable[[], None], is_active: Callable[[], bool], every_s: float = 60.0) -> None:
        self._sweep = sweep
        self._every_s = every_s
        self._is_active = is_active
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="onefold-sweeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            try:
                is_active = self._is_active()
                self._sweep()
                if not is_active:
                    return
            except InternalError:
                log.exception("the sweep has ended: a check of onefold's own failed")
                return
            except OnefoldError as error:
                log.warning("the sweep will be tried again: %s", error)
            except (OSError, Py4JError):
                return  # Spark is gone, and the query with it
