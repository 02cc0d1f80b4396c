"""What a connector author runs: every promise of the contract, held against the real thing, with real crashes.

promises.py      the promises, one sentence each; what is reported of them
processes.py     calls in processes of their own, killed at chosen points
strikes.py       which points of a call are struck
calls.py         the contract's calls as values that travel to those processes
workbench.py     a pipeline of one check, its rows, and a look at the destination
sink_checks.py   what every sink promises, where nobody crashes
sharing.py       the same of rows that several writers share
crash_checks.py  what every transactional sink promises, where its process is killed
kinds.py, two_phase.py, last_resource.py   what differs between the kinds of sinks
sinks.py, stores.py   the two entries, check_sink and check_store
"""

from onefold.core.testing.conformance.promises import BrokenPromise, ConformanceReport, Promise
from onefold.core.testing.conformance.sinks import check_sink
from onefold.core.testing.conformance.stores import check_store

__all__ = ["BrokenPromise", "ConformanceReport", "Promise", "check_sink", "check_store"]
