"""What onefold has in C: one library, found at run time, without which everything works. See docs/compiled-fetch.md."""
