"""What writers do, whatever runs them: how rows are shared out among them, one attempt of a task, the bad records it
comes upon, the offsets by which destinations compare rows, and files that last."""
