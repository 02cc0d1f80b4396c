"""TLS and SASL for our own connections, from librdkafka's security settings."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from onefold.clients.kafka.librdkafka import Settings
from onefold.core.errors import ConfigError

__all__ = ["Security"]

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
    """How a connection begins: with `tls` or without, and with a SASL mechanism or without."""

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
