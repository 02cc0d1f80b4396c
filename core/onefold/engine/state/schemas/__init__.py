"""What an operator keeps, described in its snapshots, and how that changes with the flow."""
