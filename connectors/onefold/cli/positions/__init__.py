"""`onefold positions`: where a pipeline stands, and moving it elsewhere."""
