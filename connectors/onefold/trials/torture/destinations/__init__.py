"""Destinations of a torture run: written by the pipeline, read by the audit."""
