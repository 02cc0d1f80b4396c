"""The RocksDB backend, which needs the extra `state`."""

from onefold.engine.state.rocks.rocks_backend import RocksBackend

__all__ = ["RocksBackend"]
