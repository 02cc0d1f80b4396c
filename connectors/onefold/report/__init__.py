"""What was verified as one page of HTML that needs nothing else: no server, no script, no other file."""
