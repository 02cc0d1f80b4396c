"""The dataflow of one run, without I/O: chains, subtasks, their inputs and outputs."""
