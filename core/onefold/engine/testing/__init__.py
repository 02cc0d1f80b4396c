"""Runs the subtasks of a flow with the protocol, in memory, in every order within a bound, and strikes them."""
