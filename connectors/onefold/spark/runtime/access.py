"""Who else may speak with the driver: its callback server is closed to others, and its other ports are looked at.

Spark's JVM calls the function of a `foreachBatch` through py4j's callback server, a loopback port that PySpark starts
without a secret. Whoever connects there may call that function, and what it then asks "the JVM" goes back over the
caller's own connection: any user of the machine plays the JVM to it, and has Python unpickle what they serve. py4j
knows a secret for that port, which both sides must be given.
"""

from __future__ import annotations

import secrets
import socket
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from py4j.java_gateway import JavaObject, set_linger
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from onefold.clients.exposure import is_here
from onefold.core import ConfigError
from onefold.spark.errors.failures import asking_jvm, is_jvm_gone

_closed: weakref.WeakSet[Any] = weakref.WeakSet()  # callback servers that ask for the secret
_closing = threading.Lock()


def close_callbacks(spark: SparkSession) -> None:
    """Have the callback server take calls of Spark's own JVM only. It may be repeated.

    Raises ConfigError where that cannot be done.
    """
    if not hasattr(spark, "_jsparkSession"):
        raise _open("Spark Connect calls a job's functions by ways that onefold does not know", "Use a classic session")
    with _closing:
        if not are_callbacks_closed():
            # A thread that was called has its caller's connection, whoever that is: another one has one of its own.
            with ThreadPoolExecutor(1) as aside:
                aside.submit(_close, spark, SparkContext._gateway).result()


def are_callbacks_closed() -> bool:
    """Whether this process's callback server takes calls of Spark's own JVM only. Asks nobody."""
    return _server_of(SparkContext._gateway) in _closed


def check_callbacks() -> None:
    """Raise ConfigError in a call that may be a stranger's. Asks nobody: a stranger would answer."""
    if not are_callbacks_closed():
        raise _query_before()


@asking_jvm()
def _close(spark: SparkSession, gateway: Any) -> None:
    if not gateway.gateway_parameters.auth_token:
        raise _open("Spark's JVM, which another program has started, has no secret", "Have PySpark start it")
    try:
        if _server_of(gateway) is not None and spark._jsparkSession.sharedState().activeStreamingQueries().size():
            raise _query_before()  # it would lose the connection that its batch is at
        _share_secret(gateway)
    except Py4JError as error:
        if is_jvm_gone(error):
            raise
        said = str(error).strip().partition("\n")[0]
        raise _open(f"Spark's JVM takes no secret for it: {said}", "Use the py4j of PySpark itself") from error


def _share_secret(gateway: Any) -> None:
    """Have the server, which is started where it is not, ask for a secret, and the JVM's client tell it.

    Not the gateway's own, which the JVM would tell whoever listens at the port of a process that was killed.
    """
    secret = secrets.token_hex(32)
    gateway.callback_server_parameters.auth_token = secret
    try:
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]  # PySpark has no types here
        client = JavaObject("GATEWAY_SERVER", gateway._gateway_client).getCallbackClient()
        field = gateway.jvm.java.lang.Class.forName("py4j.CallbackClient").getDeclaredField("authToken")
        field.setAccessible(True)
        field.set(client, secret)
    except Py4JError:
        gateway.callback_server_parameters.auth_token = None  # or nobody could call
        raise
    _hang_up(_server_of(gateway))
    _closed.add(_server_of(gateway))


def _hang_up(server: Any) -> None:
    """End the connections that were made without the secret. They are reset, so the JVM sends again by others."""
    with server.lock:
        for connection in list(server.connections):
            with suppress(OSError, AttributeError):  # it has ended meanwhile
                set_linger(connection.socket)
                connection.socket.shutdown(socket.SHUT_RDWR)


def _server_of(gateway: Any) -> Any:
    return None if gateway is None else gateway.__dict__.get("_callback_server")  # its getattr asks the JVM


def _query_before() -> ConfigError:
    return _open(
        "this session started a query before onefold closed it", "Call register(spark) before the first query starts"
    )


def _open(why: str, what_to_do: str) -> ConfigError:
    return ConfigError(
        "callbacks-open",
        "the port at which Spark calls back into this process asks nobody for a secret, and any user of this machine"
        f" could run code there: {why}. {what_to_do}; or say that nobody else uses the machine, trust_machine=True",
    )


def exposure_of(spark: SparkSession) -> str:
    """Why others could read what Spark's driver sends its executors, the sinks' passwords with it; empty if nobody
    could. Of Spark Connect, whose driver is elsewhere, nothing is known."""
    if not hasattr(spark, "_jsparkSession"):
        return ""

    def set_to(name: str) -> str:
        return str(spark.conf.get(name, ""))

    master = set_to("spark.master")
    is_local = master.startswith("local") or is_here(master.removeprefix("spark://").rpartition(":")[0])
    if set_to("spark.authenticate") != "true":
        address = set_to("spark.driver.bindAddress") or set_to("spark.driver.host")
        who = "any user of this machine" if is_local and is_here(address) else "whoever reaches this machine"
        return (
            f"spark.authenticate is not set, and {who} can read the sinks' passwords out of the driver's port. Start"
            " Spark with spark.authenticate=true"
        )
    if is_local or "true" in (set_to("spark.network.crypto.enabled"), set_to("spark.ssl.rpc.enabled")):
        return ""
    return (
        "spark.network.crypto.enabled is not set, and somebody on the network can read the sinks' passwords on their"
        " way to the executors. Start Spark with spark.network.crypto.enabled=true"
    )
