"""The checkpoint store: generations, epochs and frozen positions in any SQL database."""
