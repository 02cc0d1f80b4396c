"""delivery="keyed": records with unique ids, written at least once and read once."""
