"""Event time: what a source says of it, and the clocks that operators go by."""
