"""The deduplicating reader."""
