"""The main job, under fire: Kafka to Postgres through Spark, killed again and again, then audited."""

from onefold.trials.demo.demo_run import run_demo
from onefold.trials.demo.demo_settings import DemoSettings

__all__ = ["DemoSettings", "run_demo"]
