"""Postgres: connections kept per process, and what its errors mean."""
