"""State that can be asked for: as the last completed epoch left it, or as it is now."""
