"""What Postgres's errors mean: by SQLSTATE (Postgres manual, appendix A), and by libpq's and poolers' words where a
connection fails and there is none. The one place that knows SQLSTATEs; and which limits no long transaction may have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from onefold.clients.sql.database_backend import Meaning

# For the transaction at hand: a stricter `remote_apply` is left alone.
DURABLE = (
    "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') <> 'remote_apply'"
)
# Which limits on the time of a statement or transaction are not the client's own wish.
LIMITS = """
SELECT name FROM pg_catalog.pg_settings WHERE source OPERATOR(pg_catalog.<>) 'client'
    AND name OPERATOR(pg_catalog.=) ANY ('{statement_timeout,transaction_timeout}') ORDER BY 1
"""

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
# The classes (Postgres manual, appendix A) that a row as such ends with: its values (22), a constraint (23), a view's
# CHECK OPTION (44), its size or depth (54000, 54001, and 42622: a text that is too long for the type `name`), and what
# a function that looks at it says, be it a trigger's, a default's or an index's: in PL/pgSQL (09, 20, 21, 2F, P0) or in
# another language (38, 39).
_OF_A_ROW = ("09", "20", "21", "22", "23", "2F", "38", "39", "42622", "44", "54000", "54001", "P0")
# All others that Postgres has. What is in neither is a trigger's own: RAISE ... USING ERRCODE = 'OR001'.
_OF_THE_SERVER = (
    *("00", "01", "02", "03", "08", "0A", "0B", "0F", "0L", "0P", "0Z", "10", "24", "25", "26", "27", "28", "2B", "2D"),
    *("34", "3B", "3D", "3F", "40", "42", "53", "54", "55", "57", "58", "72", "F0", "HV", "XX"),
)
# What the rest mean, the first that fits: a session that ended, or a COMMIT that broke off in the middle ("completion
# unknown"; after any other error the transaction has rolled back, as for a deferred constraint); what goes away by
# itself; what somebody has to mend; and what has run out. Of class 55 only these two pass: an object in use, a lock.
# 55000 says that an object is not as the statement needs it (no replica identity, no prepared transactions), 55P02 that
# a setting is not to be changed now, 55P04 that an enum's value is too new. Of class 42 none passes: names, types and
# rights stay as they are (two that create one thing at once, `is_there_already`). 53400 is a limit that somebody has to
# raise.
_MEANINGS = (
    (Meaning.BROKEN, ("08", "57P", "40003", "25P03", "25P04")),
    (Meaning.PASSING, ("25006", "40", "55006", "55P03", "57", "58")),
    (Meaning.HOPELESS, ("0A", "28", "2B", "3D", "3F", "42", "53400", "55")),
    (Meaning.EXHAUSTED, ("53",)),
)
# Of SQLSTATE 55000, COMMIT PREPARED while another session is at the same transaction.
_BUSY = re.compile("prepared transaction with identifier .* is busy")
_WANTING = ("23001", "23503")  # a row that is referred to, or refers to none
# What two that create the same thing at once collide with too; 42710 is a table's row type.
_THERE_ALREADY = ("23505", "42P06", "42P07", "42710")
REPLICA_IDENTITY = (
    "The table is in a publication, of FOR ALL TABLES maybe, and Postgres has to say there which rows change: ALTER"
    " TABLE ... REPLICA IDENTITY FULL, or USING INDEX with a unique index of columns that are NOT NULL"
)
READ_ONLY = (
    "The server is a standby, or was set to read only: name all hosts of the cluster in the URL (host1,host2), so that"
    " the primary is found"
)


def lifting(limits: Iterable[tuple[str]]) -> list[str]:
    """The statements that lift the limits that LIMITS found, for the transaction at hand."""
    return [f"SET LOCAL {name} = 0" for (name,) in limits]


def meaning(state: str, text: str) -> Meaning:
    """What an error says of its transaction; `state` is empty where the connection failed, and only words are there."""
    if refuses_row(state):
        return Meaning.BAD_ROW
    if not state and any(words in text for words in _REFUSALS):
        return Meaning.HOPELESS
    if not state and any(words in text for words in _EXHAUSTIONS):
        return Meaning.EXHAUSTED
    if is_read_only(text):
        return Meaning.PASSING  # until the primary is found
    if not state:
        return Meaning.BROKEN
    if state == "55000" and _BUSY.search(text):
        return Meaning.PASSING
    return next((meant for meant, states in _MEANINGS if state.startswith(states)), Meaning.UNKNOWN)


def is_read_only(text: str) -> bool:
    """Whether the server takes no writes, as a standby."""
    return any(words in text for words in _READ_ONLY)


def lacks_identity(state: str, text: str) -> bool:
    """Whether rows were not updated or deleted for want of a replica identity, since the table is published."""
    return state == "55000" and "replica identity" in text


def refuses_row(state: str) -> bool:
    """Whether an error of that SQLSTATE is about a row, so that without it the others go in. False without one."""
    return state.startswith(_OF_A_ROW) or bool(state and not state.startswith(_OF_THE_SERVER))


def wants_another_row(state: str | None) -> bool:
    """Whether a row was refused for want of another one, which may yet come."""
    return state in _WANTING


def is_there_already(state: str | None) -> bool:
    """Whether a CREATE failed because the thing is there."""
    return state in _THERE_ALREADY
