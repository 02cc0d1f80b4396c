"""Throughput and time per batch, side by side with other ways, as ratios within one run. See docs/benchmarks.md."""
