"""Streaming queries and batch runs: the driver's and the executors' half of an epoch."""
