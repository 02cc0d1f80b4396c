"""What an operator does to a pipeline at rest, by the protocol: positions moved, sinks changed, begun elsewhere."""
