"""The command `onefold doctor`: its options, and what it prints."""
