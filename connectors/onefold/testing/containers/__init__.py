"""Servers in containers, for tests."""
