"""Narrows a committer to LastResource or WriteThrough, as its sink's guarantee says, and finds the last resource."""

from __future__ import annotations

from collections.abc import Mapping

from onefold.core.contract import Committer, Guarantee, LastResource, SinkKind, WriteThrough
from onefold.core.errors import ConfigError, InternalError


def last_resource(committer: Committer) -> LastResource:
    """The committer. Raises InternalError where it cannot merge inside a decision."""
    if not isinstance(committer, LastResource):
        raise InternalError(
            "contract-method-missing",
            f"{committer!r} says that it is a last resource, and lacks a method of LastResource",
        )
    return committer


def sole_last_resource(guarantees: Mapping[str, Guarantee]) -> str | None:
    """The sink that merges inside the decision's own transaction, by name. Raises ConfigError for several."""
    merging = [name for name, promise in guarantees.items() if promise.kind is SinkKind.LAST_RESOURCE]
    if len(merging) > 1:
        ways = [f"{name!r} with {guarantees[name].two_phase_by}" for name in merging if guarantees[name].two_phase_by]
        way = f"Let all but one be two-phase ({', '.join(ways)}), or give" if ways else "Give"
        raise ConfigError(
            "several-last-resources",
            f"the sinks {', '.join(merging)} would each have to be the one transaction that decides, and only one"
            f" can. {way} each a flow or a pipeline of its own",
        )
    return merging[0] if merging else None


def check_shared(sink: str, promise: Guarantee, is_shared: bool) -> None:
    """Raise ConfigError where the checkpoint store is in another database than the last resource."""
    if not is_shared:
        way = f", or let the sink be two-phase ({promise.two_phase_by})" if promise.two_phase_by else ""
        raise ConfigError(
            "store-elsewhere",
            f"sink {sink!r} merges inside the decision's own transaction, so the checkpoint store must be"
            f" in its database: leave out store={way}",
        )


def write_through(committer: Committer) -> WriteThrough:
    """The committer. Raises InternalError where it cannot announce an epoch."""
    if not isinstance(committer, WriteThrough):
        raise InternalError(
            "contract-method-missing", f"{committer!r} says that it writes through, and lacks a method of WriteThrough"
        )
    return committer
