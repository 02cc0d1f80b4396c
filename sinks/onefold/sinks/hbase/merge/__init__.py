"""Aggregates of an epoch's rows, merged with what the table has."""
