"""What an epoch of files takes: the files that are new, and the log of those that were read."""
