"""The RocksDB backend, which needs the extra `state`."""

from onefold.engine.state.rocks.backend import RocksBackend

__all__ = ["RocksBackend"]
