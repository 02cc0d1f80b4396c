"""Errors between Spark and onefold: made of the texts that Spark reports, sealed where they cross, told as codes."""
