"""Logging in to Thrift servers that want Kerberos (hbase.thrift.security.qop), with thriftpy2's SASL transport."""

from __future__ import annotations

from typing import Any

from thriftpy2.transport.sasl import TCySaslClientTransport

from onefold.core.errors import ConfigError

__all__ = ["logged_in"]


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
