"""Pipelines under fire on real servers: demo, torture, and the workload of both."""
