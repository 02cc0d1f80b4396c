"""The processes in which a daemon's pipelines run."""
