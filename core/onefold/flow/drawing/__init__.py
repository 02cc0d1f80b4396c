"""Pictures of boxes and lines, as SVG. Knows no flow."""
