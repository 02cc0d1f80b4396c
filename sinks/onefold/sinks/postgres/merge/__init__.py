"""Staged rows, and their merge into the target."""
