"""The target's schema: what it is, whether the rows fit, and how it evolves."""
