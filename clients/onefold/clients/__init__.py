"""Clients of each system, which its source and its sink share."""
