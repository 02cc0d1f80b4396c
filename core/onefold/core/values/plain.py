"""What others wrote, as it may stand in an error, a log or a dead letter's reason: their texts, and where in their code
something was raised."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterable

import onefold

LENGTH_MAX = 1000  # of a reason
SAID_MAX = 4000  # of what a server said: message, detail, hint

# Control characters, ends of lines of all kinds, what turns the direction of text around or hides in it, and halves of
# surrogate pairs, which no UTF-8 has.
_UNSEEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\ufff9-\ufffb]"
)

# What stands before the host of a URL; also where the password has slashes, which makes no port of it.
_USER = re.compile(r"^(?:[^/:]*:(?!\d*(?:/|$)).*@|[^/]*@)")

_OF_SPARK = re.compile(r"/(?:pyspark|py4j)(?:[-\w.]*\.zip)?/")
# In packages: also what was compiled of Cython, whose path is none of this machine.
_INSTALLED = re.compile(r"^<frozen |/(?:site|dist)-packages/|/lib/python3\.\d+/|\.p(?:xi|yx)$")


def plain(text: str, length_max: int = LENGTH_MAX) -> str:
    """The text on one line, with nothing in it that a terminal, a log or a reader takes for more than a character.

    What is beyond `length_max` characters is left out.
    """
    shown = _UNSEEN.sub(_escaped, text[: length_max + 1])
    return shown if len(shown) <= length_max else f"{shown[:length_max]}..."


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def shown_url(url: str) -> str:
    """The URL, or path, as it may be shown: without user, password and query."""
    scheme, sign, rest = url.partition("://")
    if not sign:
        return plain(url)
    place = re.split(r"[?#]", rest, maxsplit=1)[0]
    if "@" in rest[len(place) :]:  # a password with a sign in it that ends it too early
        place = "..."
    return plain(f"{scheme}://{_USER.sub('', place)}")


def said_without(url: str, said: str) -> str:
    """What somebody said of the URL, which they may have quoted whole."""
    return plain(said.replace(url, shown_url(url)))


def counted(number: int, thing: str) -> str:
    """1 row, 1,200 rows."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def place(frames: Iterable[tuple[str, int | str, str]]) -> str:
    """` at FILE:LINE in FUNCTION` of these frames, outermost first; empty where there is none.

    It is the innermost line of the user's own code. Where all of it is in packages, one of them is the function that
    was given: the outermost line below onefold's and Spark's.
    """
    below = [frame for frame in frames if not _is_runtime(frame[0])]
    own = [frame for frame in below if not _INSTALLED.search(frame[0])]
    if not below:
        return ""
    file, line, function = own[-1] if own else below[0]
    return plain(f" at {file}:{line} in {function}")


def raised_at(error: BaseException) -> str:
    """The same of where an error was raised."""
    found = traceback.extract_tb(error.__traceback__)
    return place((frame.filename, frame.lineno or 0, frame.name) for frame in found)


def _is_runtime(file: str) -> bool:
    return bool(_OF_SPARK.search(file)) or file.startswith(
        (*(path + os.sep for path in onefold.__path__), "<frozen runpy>")
    )
