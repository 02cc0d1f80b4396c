"""Two sets of rows, compared by key."""
