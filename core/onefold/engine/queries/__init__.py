"""Asking a flow for its state: as its last completed epoch left it, or as it is now."""
