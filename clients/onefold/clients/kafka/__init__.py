"""Kafka: settings for librdkafka, requests that it has no call for, and what its errors mean."""
