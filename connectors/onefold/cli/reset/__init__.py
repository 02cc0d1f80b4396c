"""`onefold reset`: lets a pipeline begin anew."""
