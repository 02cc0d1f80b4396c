"""What the demo and the torture have in common: orders, the pipeline's process, and servers that start empty."""
