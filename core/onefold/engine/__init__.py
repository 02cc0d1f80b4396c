"""Runs flows on one machine, without a JVM: exactly once, in epochs of some milliseconds."""

from onefold.core.restart import Restart
from onefold.engine.driver.progress import Progress
from onefold.engine.driver.running import recover, run

__all__ = ["Progress", "Restart", "recover", "run"]
