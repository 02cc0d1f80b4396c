"""onefold's Spark data sources."""
