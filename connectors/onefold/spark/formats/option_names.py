"""Errors of a data source name its options as the user has set them: by their names in Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from onefold.clients.option_texts import with_names_of_spark
from onefold.core.errors import OnefoldError

__all__ = ["in_words_of_spark"]


@contextmanager
def in_words_of_spark(*models: type) -> Iterator[None]:
    """Gives errors of the block Spark's names for the fields of `models`."""
    try:
        yield
    except OnefoldError as error:
        raise error.reworded(with_names_of_spark(error.message, *models)) from error.__cause__
