"""Worker processes: how they are forked, what moves bytes between them, and what they tell their driver."""
