"""Keyed and operator state: backends, snapshots and their storage."""

from collections.abc import Iterable
from urllib.parse import quote

from onefold.core.contract import EpochRecord
from onefold.core.errors import ConfigError
from onefold.flow.writing import STATE as STATE

LEDGER = "ledger.json"  # is there once a flow keeps state
OWN_FILES = frozenset(
    {"has_written.json", "holds", "hops", LEDGER, "lock", "queries.json"}
)  # in a flow's folder, beside snapshots and notes
RETAIN = 3  # decided epochs whose state is kept
FLIGHT = ".flight"  # how the handle ends of what unaligned barriers have overtaken


def folder_of(pipeline: str) -> str:
    """The name of a flow's folder in its checkpoint."""
    return quote(pipeline, safe="").replace(".", "%2E")  # "." and ".." are other folders


def is_flight(handle: str) -> bool:
    return handle.endswith(FLIGHT)


def handles_of(record: EpochRecord | None) -> tuple[str, ...]:
    """Of the snapshots and flights that an epoch's decision names."""
    return () if record is None else tuple(work.handle for work in record.manifest if work.sink == STATE)


def refuse_in_flight(flow: str, handles: Iterable[str], nothing: str) -> None:
    """Raise ConfigError where the flow's last epoch, of these handles, has left records in flight: they are before its
    positions, and in no state or sink yet. `nothing` says what was not done."""
    if any(map(is_flight, handles)):
        raise ConfigError(
            "epoch-in-flight",
            f"the last epoch of {flow!r} has records in flight, which its unaligned barriers have overtaken: its"
            f" positions are behind them, and they are in no state or sink yet. {nothing}. Start the flow as before, if"
            " it does not run, and stop it with SIGTERM, which ends it with an aligned epoch; then try again",
        )
