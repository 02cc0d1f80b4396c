"""A source compared with a destination, row by row."""
