"""Pipelines as a service: run, restarted, stopped between epochs."""
