"""One connection to one Thrift server, logged in where that wants Kerberos (hbase.thrift.security.qop).

After any error it is dead: the next bytes on it may be an answer to an earlier question, with other rows' data in it.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Sequence
from typing import Any

from thriftpy2.protocol.compact import TCompactProtocol
from thriftpy2.protocol.cybin import TCyBinaryProtocol
from thriftpy2.thrift import TApplicationException, TMessageType
from thriftpy2.transport import TCyBufferedTransport, TCyFramedTransport, TSocket, TTransportException
from thriftpy2.transport.sasl import TCySaslClientTransport

from onefold.clients.answers import Unanswered
from onefold.clients.hbase.client_settings import Address, HBaseSettings
from onefold.clients.hbase.compact_protocol import SERVICE, varint
from onefold.core.errors import ConfigError, OnefoldError, Retriable
from onefold.core.values.plain import plain

Request = bytes | memoryview  # the arguments' struct, encoded

CONNECT_S_MAX = 10.0
IN_FLIGHT_MAX = 64  # answers of some 40 bytes each: they fit into the socket's buffers, so that nobody waits for ever
READ_BYTES = 64 << 10
_STRICT_CALL = 0x80010001
_COMPACT_CALL = bytes([0x82, TMessageType.CALL << 5 | 1])


class ThriftConnection:
    """Blocking, for one thread at a time."""

    def __init__(self, address: Address, settings: HBaseSettings) -> None:
        self.address = address
        self._is_framed, self._is_compact = settings.transport == "framed", settings.protocol == "compact"
        self._timeout_s, self._frame_bytes_max = settings.timeout_s, settings.frame_bytes_max
        self._spoken = f"{settings.transport}, {settings.protocol}"
        self._asked = 0
        self._has_answered = False
        try:
            self._socket = socket.create_connection(
                (address.host, address.port), timeout=min(settings.timeout_s, CONNECT_S_MAX)
            )
        except OSError as error:
            raise Retriable(
                "hbase-unreachable",
                f"no connection to the HBase Thrift server at {address}: {error}. Is it up, and within reach?",
            ) from error
        self._socket.settimeout(settings.timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._login: Any = None if settings.kerberos_service is None else self._log_in(settings.kerberos_service)
        if self._login is not None:
            wire = self._login
        else:
            transport = TCyFramedTransport if self._is_framed else TCyBufferedTransport
            wire = transport(TSocket(sock=self._socket), READ_BYTES)
        self._answers: Any = TCompactProtocol(wire) if self._is_compact else TCyBinaryProtocol(wire)

    @property
    def is_dead(self) -> bool:
        return self._socket.fileno() < 0

    def is_stale(self) -> bool:
        """Whether the server has closed the idle connection, or sent something that was not asked for."""
        if self.is_dead:
            return True
        waiting = select.poll()  # select() takes no more than 1024 files
        waiting.register(self._socket, select.POLLIN)
        return bool(waiting.poll(0))

    def close(self) -> None:
        self._socket.close()

    def ask_all(self, call: str, requests: Sequence[Request]) -> list[Any]:
        """The answers, in order: what HBase returned, or the exception that it answered with, as a value. Up to
        IN_FLIGHT_MAX questions are on their way at once. Raises `Unanswered`, and the connection is dead then."""
        longest = max(map(len, requests), default=0) + len(self._head(call))
        if self._is_framed and longest > self._frame_bytes_max:
            raise ConfigError(
                "hbase-request-too-large",
                f"a row needs a request of {longest:,} bytes, and the framed Thrift server at {self.address} is taken "
                f"to close the connection above frame_bytes_max, {self._frame_bytes_max:,}. Raise this and its "
                "hbase.regionserver.thrift.framed.max_frame_size_in_mb, or filter such rows",
            )
        answers: list[Any] = []
        try:
            for start in range(0, len(requests), IN_FLIGHT_MAX):
                window = requests[start : start + IN_FLIGHT_MAX]
                self._send(call, window)
                first = self._asked - len(window) + 1
                answers += [self._receive(call, first + place) for place in range(len(window))]
                self._has_answered = True
        except BaseException as error:
            self.close()
            if isinstance(error, Exception):
                waited = f" within {self._timeout_s:g} s" if isinstance(error, TimeoutError) else ""
                said = plain(str(error)) or "no word"
                raise Unanswered(
                    f"the HBase Thrift server at {self.address} did not answer {call}{waited}: {said}"
                    + ("" if self._has_answered else f". Does it speak {self._spoken}, as the settings say?")
                ) from error
            raise
        return answers

    def _log_in(self, service: str) -> Any:
        try:
            return logged_in(TSocket(sock=self._socket), self.address.host, service)
        except BaseException as error:
            self.close()
            if isinstance(error, OnefoldError) or not isinstance(error, Exception):
                raise
            if isinstance(error, OSError) or getattr(error, "type", None) == TTransportException.END_OF_FILE:
                raise Retriable(
                    "hbase-unreachable",
                    f"the HBase Thrift server at {self.address} went away during the login: {error}. Is it up?",
                ) from error
            raise ConfigError(
                "hbase-login-refused",
                f"the HBase Thrift server at {self.address} let nobody in as {service}/{self.address.host}: {error}. "
                "Is there a valid ticket (klist), and does the server have hbase.thrift.security.qop?",
            ) from error

    def _send(self, call: str, requests: Sequence[Request]) -> None:
        parts: list[Request] = []
        for request in requests:
            self._asked = self._asked % 0x7FFFFFFF + 1
            head = self._head(call)
            if self._is_framed:
                parts.append(struct.pack(">i", len(head) + len(request)))
            parts += [head, request]
        if self._login is None:
            self._socket.sendall(b"".join(parts))
        else:
            self._login.write(b"".join(parts))
            self._login.flush()

    def _head(self, call: str) -> bytes:
        name = call.encode()
        if self._is_compact:
            return _COMPACT_CALL + varint(self._asked) + varint(len(name)) + name
        return struct.pack(f">Ii{len(name)}si", _STRICT_CALL, len(name), name, self._asked)

    def _receive(self, call: str, asked: int) -> Any:
        name, kind, answered = self._answers.read_message_begin()
        if (name, answered) != (call, asked):
            raise ConnectionError(f"it answered {name} no. {answered} instead of no. {asked}")
        if kind == TMessageType.EXCEPTION:
            refusal = TApplicationException()
            refusal.read(self._answers)
            return refusal
        result = getattr(SERVICE, f"{call}_result")()
        result.read(self._answers)
        said = vars(result)
        problem = next((value for field, value in said.items() if field != "success" and value is not None), None)
        if problem is None and said.get("success", True) is None:
            raise ConnectionError("it answered without a result")
        return problem if problem is not None else said.get("success")


def logged_in(socket: Any, host: str, service: str) -> Any:
    """A transport on an open socket, logged in with the process's ticket. The principal is service/host."""
    try:
        import sasl
    except ImportError as error:
        raise ConfigError(
            "package-missing",
            "kerberos_service needs the package sasl (Cyrus SASL) and Cyrus's GSSAPI module, which are not installed: "
            "pip install sasl, apt install libsasl2-modules-gssapi-mit, and kinit before the process starts",
        ) from error

    def client() -> Any:
        made = sasl.Client()
        made.setAttr("host", host)
        made.setAttr("service", service)
        made.init()
        return made

    transport = TCySaslClientTransport(client, "GSSAPI", socket)
    transport.open()
    return transport
