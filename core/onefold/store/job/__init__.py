"""A job's side of the protocol: what a query's checkpoint says, and a pipeline's lifecycle in one driver process."""
