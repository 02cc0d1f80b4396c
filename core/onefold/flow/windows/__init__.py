"""Windows of time: which there are, and what a flow says of them."""
