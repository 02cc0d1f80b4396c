"""What a connector author runs: every promise of the contract, held against the real thing, with real crashes.

promises.py           the promises, one sentence each; report.py: what is reported of them
call_processes.py     calls in processes of their own, killed at chosen points; strikes.py: which points
calls.py              the contract's calls as values that travel to those processes
workbench.py          a pipeline of one check, its rows, and a look at the destination
subject_kinds.py      what differs between the kinds of sinks
checks/               what is checked: of every sink, of each kind, with and without crashes
sinks.py, sources.py  the entries, check_sink and check_source
aggregators.py        check_aggregator, for what runs in flows
"""

from onefold.core.testing.conformance.aggregators import check_aggregator
from onefold.core.testing.conformance.promises import BrokenPromise, ConformanceReport, Promise
from onefold.core.testing.conformance.sinks import check_sink
from onefold.core.testing.conformance.sources import check_source

__all__ = ["BrokenPromise", "ConformanceReport", "Promise", "check_aggregator", "check_sink", "check_source"]
