"""The epoch protocol, its effects and decisions, what an operator does by it to a pipeline at rest (moved,
with other sinks, begun elsewhere), and the coordinator that performs all of it."""
