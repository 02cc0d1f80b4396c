"""The compiled fetch: a small C helper on the librdkafka that confluent-kafka ships. See docs/compiled-fetch.md.

An extra that is found at run time; without it everything works, record by record.
"""

from onefold.sources.kafka.native.library import CHOICES, Choice, check_choice, described, helper

__all__ = ["CHOICES", "Choice", "check_choice", "described", "helper"]
