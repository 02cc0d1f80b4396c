"""The runtime of flows on one machine."""
