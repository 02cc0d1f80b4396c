"""`onefold txn`: what is in doubt, and an operator's way to resolve it."""
