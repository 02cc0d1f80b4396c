"""What befalls servers in containers alone: held still as a whole, and cut off by a network that drops packets.

Nobody is told of either: no connection is refused or reset. The driver and the producer are processes of this machine,
which containers see at their network's gateway; so is the torture itself, which asks no server anything meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onefold.trials.torture.fault_plan import FaultKind, PlannedFault
from onefold.trials.torture.strikes.strike import Struck, hold_at
from onefold.trials.torture.torture_world import TortureWorld

if TYPE_CHECKING:
    from onefold.testing.containers.cut import Peer


def pause_server(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
    server = _server(world, fault.kind)
    struck(server.name, server.pid)
    server.pause()
    try:
        world.wait_unseeing(fault.hold_s)
    finally:
        server.resume()
    return f"woken after {fault.hold_s} s"


def cut_driver(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
    server = _server(world, fault.kind)
    return _cut(world, fault, struck, server, "this machine", server.network.gateway)


def cut_executor(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
    """One of the workers, and so all of its executors."""
    cluster: Any = world.servers.cluster
    server = _server(world, fault.kind)
    return _cut(world, fault, struck, _chosen(cluster.workers, fault), server.name, server)


def cut_server(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
    return _cut(world, fault, struck, _server(world, fault.kind), "everybody", None)


def cut_thrift(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
    """Its clients give it up and go to the other one; what was sent to it lands when it hears again."""
    hbase: Any = world.servers.hbase
    return _cut(world, fault, struck, _chosen(hbase.thrifts, fault), "everybody", None)


def cut_driver_at(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
    """From one of the servers in which an epoch ends, for longer than a client waits: it cannot know what was done."""
    process = hold_at(world, fault.place)
    world.supervisor.spare(process)
    job, servers = world.job, world.servers
    into = [servers.postgres, servers.hbase, servers.kafka if job.into_kafka else None]
    server = _chosen([server for server in into if server is not None], fault)
    peer = f"process {process.number} at {fault.place}"
    return _cut(world, fault, struck, server, peer, server.network.gateway, released=process)


def _cut(
    world: TortureWorld,
    fault: PlannedFault,
    struck: Struck,
    server: Any,
    peer: str,
    address: Peer,
    released: Any = None,
) -> str:
    """`released` goes on once the cut is in force."""
    with server.cut(address, fault.direction):
        struck(f"{server.name} from {peer}, {fault.direction}", server.pid)
        if released is not None:
            released.release()
        world.wait_unseeing(fault.hold_s)
    return f"mended after {fault.hold_s} s"


def _server(world: TortureWorld, kind: FaultKind) -> Any:
    """The container, or all that are one server, that a kind names."""
    servers: Any = world.servers
    match kind:
        case FaultKind.PAUSE_HBASE | FaultKind.CUT_HBASE:
            return servers.hbase.hbase  # its Thrift servers are struck by themselves
        case (
            FaultKind.PAUSE_KAFKA
            | FaultKind.CUT_KAFKA
            | FaultKind.CUT_DRIVER_FROM_KAFKA
            | FaultKind.CUT_EXECUTOR_FROM_KAFKA
        ):
            return servers.kafka
        case _:
            return servers.postgres


def _chosen(some: Any, fault: PlannedFault) -> Any:
    return some[int(fault.choice * len(some))]
