"""What users write as a flow. Knows no runtime."""
