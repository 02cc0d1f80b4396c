"""The driver's half: verify, commit, abort, and which server that is."""
