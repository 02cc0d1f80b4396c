"""Whether somebody on the network could read or change what connections carry: `require_tls`, and what doctor says.

Each `of_...` answers with the reason in words, empty where nobody could: it is TLS to a server whose certificate and
name are verified, or does not leave this machine. Only what the settings themselves say counts: an executor may have
another environment than the driver.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from onefold.clients.sql.url import url_of
from onefold.core.errors import ConfigError

_IN_THE_OPEN = "somebody on the network can read and change what it carries"
_ANY_SERVER = "whoever answers is taken for the server"


@runtime_checkable
class Reaching(Protocol):
    """A source or a sink that says how its servers are reached."""

    def exposure(self) -> str:
        """Why the connections are not TLS to verified servers; empty if they are. Asks no server."""
        ...


def require_tls(parts: Iterable[tuple[str, object]]) -> None:
    """Raises ConfigError for a part (what people call it, and itself) that is exposed, or does not say."""
    for what, part in parts:
        says = part.exposure() if isinstance(part, Reaching) else "it has no method `exposure`, which would say"
        if says:
            raise ConfigError("tls-required", f"{what} may not be reached so, with require_tls: {says}")


def check_reached(sources: Sequence[object], sinks: Sequence[object], store: str) -> None:
    """Raises ConfigError for a source, a sink or a checkpoint store (its URL; empty where it is not known yet) that
    `require_tls` forbids."""
    for what, parts in (("source", sources), ("sink", sinks)):
        require_tls((f"{what} {getattr(part, 'name', part)!r}", part) for part in parts)
    if store and (says := of_url(store, "the checkpoint store's")):
        raise ConfigError("tls-required", f"the checkpoint store may not be reached so, with require_tls: {says}")


def is_here(host: str) -> bool:
    """Whether that is this machine: a socket's folder, or a loopback address."""
    if host.startswith(("/", "@")) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def of_postgres(parameters: Mapping[str, Any]) -> str:
    """`parameters` are libpq's, of one connection."""
    named = str(parameters.get("hostaddr") or parameters.get("host") or os.environ.get("PGHOST") or "")
    is_socket = not named and "service" not in parameters
    if is_socket or all(map(is_here, named.split(","))) or parameters.get("gssencmode") == "require":
        return ""
    mode = parameters.get("sslmode")
    if mode == "verify-full":
        return ""
    says = _ANY_SERVER if mode in ("require", "verify-ca") else _IN_THE_OPEN
    return f"sslmode is {mode or 'not in the URL'}, and {says}. Write sslmode=verify-full and sslrootcert into the URL"


def of_url(text: str, whose: str) -> str:
    """Of a database's URL. Raises ConfigError."""
    url = url_of(text, whose)
    told = url.query
    match url.kind:
        case "sqlite":
            return ""
        case "postgresql":
            return of_postgres({"host": url.host, **told})
    if "unix_socket" in told or is_here(url.host or "localhost"):
        return ""
    others = [name for name in told if name.startswith("ssl_") and name not in _MARIADB]
    has_authority = bool(told.get("ssl_ca") or told.get("ssl_capath"))
    if not has_authority:
        return f"the URL names no ssl_ca, and {_IN_THE_OPEN}. Write ssl_ca into the URL: the server is verified then"
    if others or told.get("ssl_check_hostname", "true") != "true":
        which = others[0] if others else "ssl_check_hostname"
        return f"{which} changes what ssl_ca alone has PyMySQL verify, and {_ANY_SERVER}. Leave it out"
    return ""


_MARIADB = ("ssl_ca", "ssl_capath", "ssl_cert", "ssl_key", "ssl_cipher", "ssl_check_hostname")


_LAX = {"enable.ssl.certificate.verification": "false", "ssl.endpoint.identification.algorithm": "none"}


def of_kafka(bootstrap_servers: str, settings: Mapping[str, str]) -> str:
    """Of librdkafka's settings."""
    if all(is_here(server.strip().rpartition("://")[2].rpartition(":")[0]) for server in bootstrap_servers.split(",")):
        return ""
    protocol = settings.get("security.protocol", "plaintext").lower()
    if not protocol.endswith("ssl"):
        return f"security.protocol is {protocol}, and {_IN_THE_OPEN}. Set it to SSL or SASL_SSL"
    for name, lax in _LAX.items():
        if settings.get(name, "").lower() == lax:
            return f"{name} is {lax}, and {_ANY_SERVER}. Leave it out"
    return ""


def of_registry(urls: str) -> str:
    """Of a schema registry's URL, or several."""
    for url in urls.split(","):
        scheme, _, rest = url.strip().partition("://")
        host = rest.partition("/")[0].rpartition("@")[2]
        if scheme.lower() != "https" and not is_here(host.rpartition(":")[0] or host):
            return f"the schema registry's URL begins with {scheme}://, and {_IN_THE_OPEN}. Write https://"
    return ""
