"""What the writers of an epoch do, whatever runs them: one attempt of a task, and the bad records it comes upon."""
