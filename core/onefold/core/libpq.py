"""What stores, sinks and sources have to know of Postgres alike: what libpq and a pooler say where waiting can't cure a
refused connection (they give no SQLSTATE, only words), and which limits no long transaction may have."""

from __future__ import annotations

__all__ = ["LIMITS_LIFTED", "READ_ONLY", "is_exhaustion", "is_read_only", "is_refusal"]

# For the transaction at hand. Limits on the time of a statement or transaction that are the
# role's, the database's or the server's would end a long COPY or merge again and again. What the URL's own `options`
# set is the user's wish, and stays.
LIMITS_LIFTED = (
    "SELECT count(set_config(name, '0', true)) FROM pg_settings"
    " WHERE (current_setting('statement_timeout') <> '0'"
    " OR coalesce(current_setting('transaction_timeout', true), '0') <> '0')"  # the latter since Postgres 17
    " AND name IN ('statement_timeout', 'transaction_timeout') AND source <> 'client'"
)

_REFUSALS = (
    # who
    "authentication failed",  # also "password authentication failed"
    "no password supplied",
    "no pg_hba.conf entry",
    "is not permitted to log in",
    "no such user",
    "permission denied to set role",
    # where
    "does not exist",  # a database, a role, a file that was named
    "no such database",
    "definition of service",
    "service file",
    # TLS
    "server does not support SSL",
    "SSL required",
    "certificate verify failed",
    "server certificate for",  # "... does not match host name"
    "valid client certificate",
    "alert unknown ca",
    "alert certificate required",
    "alert handshake failure",
    "alert bad certificate",
    "alert certificate expired",
    "could not read certificate file",
    "could not load private key file",
    "could not read root certificate file",
    "private key file",
    "certificate present, but not private key",
    # how
    "invalid sslmode value",
    "unsupported startup parameter",
    "channel binding is required",
    "unrecognized configuration parameter",
    "invalid value for parameter",
)
_EXHAUSTIONS = (
    "too many clients already",
    "too many connections for",
    "remaining connection slots are reserved",
    "no more connections allowed",
)
# Of connecting with target_session_attrs=read-write, of SQLSTATE 25006, and of 0A000 for BEGIN READ WRITE on a standby.
_READ_ONLY = ("session is read-only", "in a read-only transaction", "during recovery")
READ_ONLY = (
    "The server is a standby, or was set to read only: name all hosts of the cluster in the URL (host1,host2), so that"
    " the primary is found"
)


def is_refusal(text: str) -> bool:
    """Whether somebody has to mend a setting before this connection can be made."""
    return any(words in text for words in _REFUSALS)


def is_exhaustion(text: str) -> bool:
    """Whether the server or pooler has no connection left to give."""
    return any(words in text for words in _EXHAUSTIONS)


def is_read_only(text: str) -> bool:
    """Whether the server takes no writes, as a standby."""
    return any(words in text for words in _READ_ONLY)
