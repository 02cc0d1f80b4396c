"""The protocol struck at every step, in memory, over model sinks and a model store."""
