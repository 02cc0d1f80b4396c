"""Values parsed as Arrow, and the bad ones among them."""
