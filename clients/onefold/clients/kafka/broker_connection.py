"""One connection to one broker, for requests that librdkafka has no call for. The codec is kafka-python's.

An exchange that is interrupted closes the connection: the next bytes on it may answer an earlier request.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from onefold.clients.answers import Unanswered, understood
from onefold.clients.kafka.librdkafka import Settings
from onefold.core.errors import ConfigError, Retriable
from onefold.core.values.plain import plain

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_VERIFIES = "enable.ssl.certificate.verification"
_APPLIED = (
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.crl.location",
    "ssl.cipher.suites",
    "ssl.endpoint.identification.algorithm",
    _VERIFIES,
)
_NEEDED = "the sink reads its ledger and ends transactions with requests of its own, beside librdkafka's, and these"


@dataclass(frozen=True, slots=True)
class Security:
    """How a connection begins, by librdkafka's security settings: with `tls` or without, and with a SASL mechanism or
    without."""

    tls: bool
    mechanism: str | None
    username: str
    password: str = field(repr=False)
    settings: tuple[tuple[str, str], ...] = field(repr=False)

    @classmethod
    def of(cls, settings: Settings) -> Security:
        """Raises ConfigError for a setting that librdkafka knows, and our own connections do not."""
        protocol = settings.get("security.protocol", "plaintext").upper()
        if protocol not in _PROTOCOLS:
            raise ConfigError("option-value", f"security.protocol={protocol!r} must be one of {', '.join(_PROTOCOLS)}")
        mechanism = None
        if protocol.startswith("SASL_"):
            mechanism = settings.get("sasl.mechanism", settings.get("sasl.mechanisms", "GSSAPI")).upper()
            if mechanism not in _MECHANISMS:
                raise ConfigError(
                    "option-value",
                    f"sasl.mechanism={mechanism!r}: {_NEEDED} know {', '.join(_MECHANISMS)} only. Use one of them, or "
                    "TLS client certificates (security.protocol=SSL)",
                )
            if not settings.get("sasl.username") or "sasl.password" not in settings:
                raise ConfigError(
                    "option-missing", f"sasl.mechanism={mechanism!r} needs sasl.username and sasl.password"
                )
        security = cls(
            tls=protocol.endswith("SSL"),
            mechanism=mechanism,
            username=settings.get("sasl.username", ""),
            password=settings.get("sasl.password", ""),
            settings=tuple(sorted((name, value) for name, value in settings.items() if "ssl" in name)),
        )
        security.context()  # so that a file that cannot be loaded shows now
        return security

    def context(self) -> ssl.SSLContext | None:
        if not self.tls:
            return None
        given = dict(self.settings)
        if others := [name for name in given if name not in _APPLIED]:
            raise ConfigError(
                "option-not-allowed",
                f"{others[0]}: {_NEEDED} apply {', '.join(_APPLIED)}, and no other of librdkafka's ssl settings: leave"
                " it out. Certificates and keys are given as PEM files",
            )
        authorities = given.get("ssl.ca.location")
        is_folder = authorities is not None and Path(authorities).is_dir()
        try:
            context = ssl.create_default_context(
                cafile=None if is_folder else authorities,
                capath=authorities if is_folder else None,
                cadata=given.get("ssl.ca.pem"),
            )
            if "ssl.certificate.location" in given:
                context.load_cert_chain(
                    given["ssl.certificate.location"], given.get("ssl.key.location"), given.get("ssl.key.password", "")
                )
            if "ssl.crl.location" in given:
                context.load_verify_locations(given["ssl.crl.location"])
                context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
            if "ssl.cipher.suites" in given:
                context.set_ciphers(given["ssl.cipher.suites"])
        except (OSError, ValueError) as error:
            raise ConfigError(
                "tls-files-unusable", f"the ssl.* settings cannot be used: {error}. They name PEM files"
            ) from error
        is_trusting = given.get(_VERIFIES, "true").lower() == "false"
        if is_trusting or given.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
            context.check_hostname = False
        if is_trusting:
            context.verify_mode = ssl.CERT_NONE
        return context


RESPONSE_BYTES_MAX = 64 << 20
IN_FLIGHT_MAX = 50
CONNECT_S_MAX = 10.0
_CLIENT = "onefold"


class WireConnection:
    """A blocking connection. Requests are sent together, and Kafka answers them in their order."""

    def __init__(self, host: str, port: int, security: Security, timeout_s: float) -> None:
        self.address = plain(f"{host}:{port}")  # brokers name one another
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}  # none are known before the first answer
        try:
            self._socket = socket.create_connection((host, port), timeout=min(timeout_s, CONNECT_S_MAX))
            self._socket.settimeout(timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if (context := security.context()) is not None:
                self._socket = context.wrap_socket(self._socket, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            raise ConfigError(
                "tls-certificate-untrusted",
                f"the Kafka broker at {self.address} shows a certificate that is not to be trusted: {error}. Mend "
                "ssl.ca.location, or bootstrap_servers where the name is another",
            ) from error
        except (OSError, ValueError, OverflowError) as error:  # or a name and a port that are none
            raise Retriable(
                "kafka-unreachable",
                f"no connection to the Kafka broker at {self.address}: {error}. Is it up, and within reach?",
            ) from error
        try:
            with understood(f"the Kafka broker at {self.address}"):
                self._versions = self._ask_versions()
                if security.mechanism is not None:
                    self._authenticate(security.mechanism, security)
        except Unanswered as error:
            self.close()
            raise Retriable("kafka-unanswered", f"{error}. Is security.protocol right for that port?") from error
        except BaseException:
            self.close()
            raise

    @property
    def is_closed(self) -> bool:
        return self._socket.fileno() < 0

    def close(self) -> None:
        self._socket.close()

    def has(self, request: type[Any], version: int) -> bool:
        """Whether the broker knows this version of a request."""
        low, high = self._versions.get(request.API_KEY, (0, -1))
        return low <= version <= high

    def ask(self, request: Any, response: type[Any], version: int) -> Any:
        return self.ask_all([request], response, version)[0]

    def ask_all(self, requests: Sequence[Any], response: type[Any], version: int) -> list[Any]:
        """The answers, in order. Raises Unanswered, and the connection is of no more use then."""
        for request in {type(request) for request in requests} if self._versions else ():
            if not self.has(request, version):
                raise ConfigError(
                    "kafka-too-old",
                    f"the Kafka broker at {self.address} is too old: it has no {request.__name__} of "
                    f"version {version}. The sink needs brokers from 2.7 on for delivery='keyed', from 4.0 on for "
                    "delivery='transactional'",
                )
        framed = [self._framed(request, version) for request in requests]
        answers: list[Any] = []
        try:
            for start in range(0, len(framed), IN_FLIGHT_MAX):
                asked = framed[start : start + IN_FLIGHT_MAX]
                self._socket.sendall(b"".join(frame for _, frame in asked))
                for number, _ in asked:
                    answer = self._answer(number)
                    with understood(f"the Kafka broker at {self.address}"):
                        answers.append(response[version].decode(answer, header=True))
        except OSError as error:
            self.close()
            raise Unanswered(f"the Kafka broker at {self.address} did not answer: {error or 'no word'}") from error
        except BaseException:
            self.close()
            raise
        return answers

    def _framed(self, request: Any, version: int) -> tuple[int, bytes]:
        """A request as it goes out, behind the number that its answer repeats."""
        self._correlation_id = self._correlation_id % 0x7FFFFFFF + 1
        request.with_header(self._correlation_id, _CLIENT)
        return self._correlation_id, bytes(request.encode(version=version, header=True, framed=True))

    def _answer(self, asked: int) -> bytes:
        answer = self._receive()
        (answered,) = struct.unpack_from(">i", answer)
        if answered != asked:
            raise OSError(f"it answered request {answered} instead of {asked}")
        return answer

    def _receive(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        if not 4 <= size <= RESPONSE_BYTES_MAX:
            raise OSError(f"{size} is not the size of an answer")
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            part = self._socket.recv(size - len(received))
            if not part:
                raise OSError("it closed the connection")
            received += part
        return bytes(received)

    def _ask_versions(self) -> dict[int, tuple[int, int]]:
        request = ApiVersionsRequest(client_software_name=_CLIENT, client_software_version="0")
        answer = self.ask(request, ApiVersionsResponse, 3)
        self.features = {f.name: f.max_version_level for f in getattr(answer, "finalized_features", None) or ()}
        return {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}

    def _authenticate(self, mechanism: str, security: Security) -> None:
        offered = self.ask(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse, 1)
        if offered.error_code:
            known = plain(", ".join(offered.mechanisms))
            raise ConfigError(
                "sasl-mechanism-missing",
                f"the Kafka broker at {self.address} has no SASL mechanism {mechanism}: it has {known}",
            )
        exchange = get_sasl_mechanism(mechanism)(
            sasl_mechanism=mechanism, sasl_plain_username=security.username, sasl_plain_password=security.password
        )
        while not exchange.is_done():
            request = SaslAuthenticateRequest(auth_bytes=exchange.auth_bytes())
            answer = self.ask(request, SaslAuthenticateResponse, 1)
            if answer.error_code:
                raise ConfigError(
                    "kafka-login-refused",
                    f"the Kafka broker at {self.address} refuses user {security.username!r}:"
                    f" {plain(answer.error_message or 'it says no more')}. "
                    "Mend sasl.username and sasl.password",
                )
            exchange.receive(answer.auth_bytes)
