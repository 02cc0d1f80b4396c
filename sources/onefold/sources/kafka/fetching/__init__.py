"""Records out of Kafka: exact ranges of offsets."""
