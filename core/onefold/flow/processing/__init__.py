"""Processors of a flow, which users write, and the state that they declare."""
