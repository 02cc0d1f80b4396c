"""What an error of a SQL database means for those who asked."""

from __future__ import annotations

import enum

__all__ = ["Meaning"]


class Meaning(enum.Enum):
    """What an error says of the transaction it came in."""

    BAD_ROW = "a row was refused"
    HOPELESS = "waiting can't cure it: a setting, a permission, a name"
    EXHAUSTED = "the server has no connection, slot or disk to spare"
    PASSING = "it may go away"
    BROKEN = "the connection broke, or the server went away in the middle"
    UNKNOWN = "none of these: a server's own fault, as a rule"
