"""State in Arrow columns: blocks of rows, and a row a key."""
