"""Rows into HBase, beside bare happybase. See docs/benchmarks.md."""
