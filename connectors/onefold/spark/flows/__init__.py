"""Runs flows on Spark: the same chains of operators as the engine runs, with Spark between them."""
