"""What writers do, whatever runs them: one attempt of a task, the bad records it comes upon, and files that last."""
