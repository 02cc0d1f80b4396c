"""Values and texts converted exactly, a column at a time, or refused."""
