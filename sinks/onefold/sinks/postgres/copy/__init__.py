"""Rows through COPY's binary format."""
