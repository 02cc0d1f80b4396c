"""Runs the strike of each kind of fault on the real servers. It signals only processes that the run has started."""

from __future__ import annotations

from onefold.trials.torture.plan import Fault, Kind
from onefold.trials.torture.strikes import hbase as hbase
from onefold.trials.torture.strikes import network as network
from onefold.trials.torture.strikes import processes as processes
from onefold.trials.torture.strikes import servers as servers
from onefold.trials.torture.strikes.strike import Strike, Struck
from onefold.trials.torture.world import World

__all__ = ["strike"]


def strike(world: World, fault: Fault, struck: Struck) -> str:
    """Strike, and wait until the fault is over. Returns details for the history. Raises Missed."""
    return _STRIKES[fault.kind](world, fault, struck)


_STRIKES: dict[Kind, Strike] = {
    Kind.KILL_DRIVER: processes.kill_driver,
    Kind.KILL_DRIVER_HALF: processes.kill_half,
    Kind.KILL_DRIVER_AT: processes.kill_at,
    Kind.PAUSE_DRIVER: processes.pause_driver,
    Kind.ZOMBIE_DRIVER: processes.zombie,
    Kind.KILL_WORKER: processes.kill_worker,
    Kind.PAUSE_WORKER: processes.pause_worker,
    Kind.KILL_WORKER_AT: processes.kill_worker_at,
    Kind.KILL_EXECUTOR: processes.kill_executor,
    Kind.PAUSE_EXECUTOR: processes.pause_executor,
    Kind.CUT_EXECUTOR: processes.cut_executor,
    Kind.ORPHAN_WORKER: processes.orphan,
    Kind.KILL_POSTGRES: servers.kill_postgres,
    Kind.KILL_KAFKA: servers.kill_kafka,
    Kind.KILL_KAFKA_AT: servers.kill_kafka_at,
    Kind.KILL_HBASE: hbase.kill_hbase,
    Kind.KILL_HBASE_AT: hbase.kill_hbase_at,
    Kind.KILL_THRIFT: hbase.kill_thrift,
    Kind.PAUSE_THRIFT: hbase.pause_thrift,
    Kind.FLUSH_HBASE: hbase.flush,
    Kind.COMPACT_HBASE: hbase.compact,
    Kind.COMPACT_HBASE_AT: hbase.compact_at,
    Kind.KILL_PRODUCER: servers.kill_producer,
    Kind.END_BACKENDS: servers.end_backends,
    Kind.LOSE_SHUFFLE: servers.lose_shuffle,
    Kind.TAKE_SLOTS: servers.take_slots,
    Kind.PAUSE_POSTGRES: network.pause_server,
    Kind.PAUSE_KAFKA: network.pause_server,
    Kind.PAUSE_HBASE: network.pause_server,
    Kind.CUT_DRIVER_FROM_POSTGRES: network.cut_driver,
    Kind.CUT_DRIVER_FROM_KAFKA: network.cut_driver,
    Kind.CUT_EXECUTOR_FROM_POSTGRES: network.cut_executor,
    Kind.CUT_EXECUTOR_FROM_KAFKA: network.cut_executor,
    Kind.CUT_POSTGRES: network.cut_server,
    Kind.CUT_KAFKA: network.cut_server,
    Kind.CUT_HBASE: network.cut_server,
    Kind.CUT_THRIFT: network.cut_thrift,
    Kind.CUT_DRIVER_AT: network.cut_driver_at,
}
assert _STRIKES.keys() == set(Kind)
