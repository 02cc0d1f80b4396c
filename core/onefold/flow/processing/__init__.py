"""Processors of a flow, which users write, the state that they declare, and the rows that functions take and give."""
