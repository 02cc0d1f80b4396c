"""The graph of a flow, and what follows from it alone."""
