"""The daemon's HTTP API: the state of its pipelines, their epochs, and what an operator may do."""
