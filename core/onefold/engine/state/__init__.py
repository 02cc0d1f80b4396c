"""Keyed and operator state: backends, snapshots and their storage."""

__all__ = ["RETAIN", "STATE"]

STATE = "state"  # the participant of an epoch that keeps a flow's state, among its sinks
RETAIN = 3  # decided epochs whose state is kept
