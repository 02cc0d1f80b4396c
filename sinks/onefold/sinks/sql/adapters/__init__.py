"""What differs between SQL databases: types, loading, statements."""
