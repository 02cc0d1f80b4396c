"""Pipelines from a command line."""
