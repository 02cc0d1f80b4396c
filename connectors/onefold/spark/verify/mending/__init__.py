"""What would mend a destination: found, and written down as a plan that nobody but its reader runs."""
