"""What to say of topics that are not there."""

from __future__ import annotations

__all__ = ["creating"]

_PARTITIONS = 6


def creating(topic: str, bootstrap_servers: str) -> str:
    """The command that makes a topic: it needs nothing that is not installed with the Kafka client."""
    return (
        'python -c "from confluent_kafka.admin import AdminClient, NewTopic; AdminClient({'
        f"'bootstrap.servers': '{bootstrap_servers}'"
        f"}}).create_topics([NewTopic('{topic}', {_PARTITIONS})])['{topic}'].result()\""
    )
