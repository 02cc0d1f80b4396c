"""`onefold prove`: the proof, and one schedule of it again."""
