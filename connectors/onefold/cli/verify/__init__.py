"""`onefold verify`: the source against the destination."""
