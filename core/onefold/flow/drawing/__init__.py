"""Pictures of boxes and lines."""
