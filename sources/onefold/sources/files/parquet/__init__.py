"""Parquet files: which of a file's columns are the source's, and its rows as Arrow, in bounded memory."""
