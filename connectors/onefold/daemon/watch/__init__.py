"""What the daemon knows of its pipelines: looks at store and servers, beside the drivers."""
