"""What each operator does in a subtask."""
