"""How fast rows get into Postgres, from memory and from Spark: `python -m bench.postgres`. See docs/benchmarks.md."""
