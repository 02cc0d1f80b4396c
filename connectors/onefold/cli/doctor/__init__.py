"""`onefold doctor`: what a pipeline guarantees as it is set up."""
