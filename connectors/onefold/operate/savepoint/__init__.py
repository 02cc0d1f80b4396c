"""`onefold savepoint`: copies of a pipeline's checkpoint with its ledger and positions, made, listed and restored."""
