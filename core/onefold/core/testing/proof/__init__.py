"""The whole proof: all bounds of the simulator, the branches they reach, and the mutants they catch."""
