"""The checks of the conformance kit, by kind of sink."""
