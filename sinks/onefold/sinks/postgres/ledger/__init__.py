"""The tables that onefold keeps in the destination."""
