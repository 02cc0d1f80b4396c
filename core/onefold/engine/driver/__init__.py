"""The driver process: it plans epochs, runs the protocol, and keeps the workers running."""
