"""Arrow columns as row keys and cells of HBase, and back."""
