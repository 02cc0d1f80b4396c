"""The faults that a torture run strikes with."""
