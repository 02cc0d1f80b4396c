"""What the daemon logs: a line of JSON for each event, with pipeline, generation and epoch."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from onefold.core import OnefoldError
from onefold.spark.errors.exits import is_of_py4j
from onefold.store.job.logs import current


def log_as_json() -> None:
    """From here on all that this process logs goes to stderr so, librdkafka's and Spark's Python messages included."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        _add_fields,
    ]
    formatter = structlog.stdlib.ProcessorFormatter(
        pass_foreign_args=True,
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.EventRenamer("message"),
            structlog.processors.JSONRenderer(default=str),
        ],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    handler.addFilter(lambda record: not is_of_py4j(record))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("onefold").setLevel(logging.INFO)


def _add_fields(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The pipeline, its generation and epoch; of an error its code."""
    codes = [arg.code for arg in event.pop("positional_args", ()) if isinstance(arg, OnefoldError)]
    event.update({"code": codes[0]} if codes else {})
    event.update(current())
    return event
