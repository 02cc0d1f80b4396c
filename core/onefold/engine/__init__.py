"""Runs flows on one machine, without a JVM: exactly once, in epochs of some milliseconds."""

from onefold.engine.driver.progress import Progress
from onefold.engine.driver.restarts import ExponentialDelay, FailureRate, FixedDelay, Restarts
from onefold.engine.driver.running import recover, run

__all__ = ["ExponentialDelay", "FailureRate", "FixedDelay", "Progress", "Restarts", "recover", "run"]
