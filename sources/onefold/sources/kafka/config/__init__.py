"""What a user sets, and the same as a data source's options."""
