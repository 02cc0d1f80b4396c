"""Windows in a subtask."""
