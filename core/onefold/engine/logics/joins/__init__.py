"""Joins in a subtask."""
