"""Kafka into columns, and rows into Kafka, beside other ways. See docs/benchmarks.md."""
