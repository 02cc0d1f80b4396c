"""A job's side of the protocol: what a query's checkpoint says, and a pipeline's life in one driver process."""
