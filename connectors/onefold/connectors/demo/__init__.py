"""The main job, under fire: Kafka to Postgres through Spark, killed again and again, then audited."""

from onefold.connectors.demo.run import run_demo
from onefold.connectors.demo.settings import DemoSettings

__all__ = ["DemoSettings", "run_demo"]
