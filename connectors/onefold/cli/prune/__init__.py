"""`onefold prune`: what nobody comes back for."""
