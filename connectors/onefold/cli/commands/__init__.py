"""Each command: it parses what it is given, has `operate` or the daemon do it, and shows what came of it."""
