"""Where batches begin and end: offsets, asked of the broker."""
