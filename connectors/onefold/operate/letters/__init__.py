"""Dead letters: which there are, and how one is sent again."""
