"""Who may ask the daemon: its token, and how it is proven."""
