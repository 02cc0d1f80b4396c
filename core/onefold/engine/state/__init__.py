"""Keyed and operator state: backends, snapshots and their storage."""

from urllib.parse import quote

from onefold.flow.writing import STATE

__all__ = ["OWN_FILES", "RETAIN", "STATE", "folder_of"]

OWN_FILES = frozenset(
    {"has_written.json", "holds", "hops", "ledger.json", "lock", "queries.json"}
)  # in a flow's folder, beside snapshots and notes
RETAIN = 3  # decided epochs whose state is kept


def folder_of(pipeline: str) -> str:
    """The name of a flow's folder in its checkpoint."""
    return quote(pipeline, safe="").replace(".", "%2E")  # "." and ".." are other folders
