"""Acknowledgement by XOR, as Storm has it: at least once, and no snapshots of state."""
