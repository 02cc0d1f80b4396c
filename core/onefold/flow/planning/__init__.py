"""The sources of a flow as one, on either runtime: planned together, and begun and refused by the same rules."""
