"""Asking a flow for its state from another process."""
