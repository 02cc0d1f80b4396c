"""Avro values, their schemas and the registry."""
