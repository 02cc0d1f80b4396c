"""`onefold status | epochs | pause | resume | stop | restart`: clients of the daemon's API."""
