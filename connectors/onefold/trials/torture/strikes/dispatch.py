"""Runs the strike of each kind of fault on the real servers. It signals only processes that the run has started."""

from __future__ import annotations

from onefold.trials.torture.fault_plan import FaultKind, PlannedFault
from onefold.trials.torture.strikes import hbase_strikes as hbase
from onefold.trials.torture.strikes import move_strikes as moves
from onefold.trials.torture.strikes import network_strikes as network
from onefold.trials.torture.strikes import process_strikes as processes
from onefold.trials.torture.strikes import server_strikes as servers
from onefold.trials.torture.strikes.strike import Strike, Struck
from onefold.trials.torture.torture_world import TortureWorld


def strike(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
    """Strike, and wait until the fault is over. Returns details for the history. Raises Missed."""
    return _STRIKES[fault.kind](world, fault, struck)


_STRIKES: dict[FaultKind, Strike] = {
    FaultKind.KILL_DRIVER: processes.kill_driver,
    FaultKind.KILL_DRIVER_HALF: processes.kill_half,
    FaultKind.KILL_DRIVER_AT: processes.kill_at,
    FaultKind.PAUSE_DRIVER: processes.pause_driver,
    FaultKind.ZOMBIE_DRIVER: processes.zombie,
    FaultKind.KILL_WORKER: processes.kill_worker,
    FaultKind.PAUSE_WORKER: processes.pause_worker,
    FaultKind.KILL_WORKER_AT: processes.kill_worker_at,
    FaultKind.KILL_EXECUTOR: processes.kill_executor,
    FaultKind.PAUSE_EXECUTOR: processes.pause_executor,
    FaultKind.CUT_EXECUTOR: processes.cut_executor,
    FaultKind.ORPHAN_WORKER: processes.orphan,
    FaultKind.MOVE: moves.move,
    FaultKind.KILL_MOVE_AT: moves.move,
    FaultKind.KILL_POSTGRES: servers.kill_postgres,
    FaultKind.KILL_KAFKA: servers.kill_kafka,
    FaultKind.KILL_KAFKA_AT: servers.kill_kafka_at,
    FaultKind.KILL_HBASE: hbase.kill_hbase,
    FaultKind.KILL_HBASE_AT: hbase.kill_hbase_at,
    FaultKind.KILL_THRIFT: hbase.kill_thrift,
    FaultKind.PAUSE_THRIFT: hbase.pause_thrift,
    FaultKind.FLUSH_HBASE: hbase.flush,
    FaultKind.COMPACT_HBASE: hbase.compact,
    FaultKind.COMPACT_HBASE_AT: hbase.compact_at,
    FaultKind.KILL_PRODUCER: servers.kill_producer,
    FaultKind.END_BACKENDS: servers.end_backends,
    FaultKind.LOSE_SHUFFLE: servers.lose_shuffle,
    FaultKind.TAKE_SLOTS: servers.take_slots,
    FaultKind.PAUSE_POSTGRES: network.pause_server,
    FaultKind.PAUSE_KAFKA: network.pause_server,
    FaultKind.PAUSE_HBASE: network.pause_server,
    FaultKind.CUT_DRIVER_FROM_POSTGRES: network.cut_driver,
    FaultKind.CUT_DRIVER_FROM_KAFKA: network.cut_driver,
    FaultKind.CUT_EXECUTOR_FROM_POSTGRES: network.cut_executor,
    FaultKind.CUT_EXECUTOR_FROM_KAFKA: network.cut_executor,
    FaultKind.CUT_POSTGRES: network.cut_server,
    FaultKind.CUT_KAFKA: network.cut_server,
    FaultKind.CUT_HBASE: network.cut_server,
    FaultKind.CUT_THRIFT: network.cut_thrift,
    FaultKind.CUT_DRIVER_AT: network.cut_driver_at,
}
assert _STRIKES.keys() == set(FaultKind)
