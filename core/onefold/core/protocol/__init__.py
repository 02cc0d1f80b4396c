"""The epoch protocol, its effects and decisions, and the coordinator that performs them."""
