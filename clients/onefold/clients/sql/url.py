"""A database's URL, `dialect+driver://user:password@host:port/database?name=value`: as SQLAlchemy has it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl, quote, quote_plus, unquote

from onefold.core.errors import ConfigError

_URL = re.compile(
    r"(?P<dialect>[\w+]+)://"
    r"(?:(?P<user>[^:/]*)(?::(?P<password>[^@]*))?@)?"
    r"(?:\[(?P<ipv6>[^/?]+)\]|(?P<host>[^/:?]+))?(?::(?P<port>[^/?]*))?"
    r"(?:/(?P<database>[^?]*))?(?:\?(?P<query>.*))?",
    re.DOTALL,
)
# Of libpq and of PyMySQL, where they may stand in a URL's query.
_SECRETS = ("password", "passwd", "sslpassword", "ssl_key_password", "oauth_client_secret")


@dataclass(frozen=True, slots=True)
class DatabaseUrl:
    """As text it shows no secret: `whole` does. Of a name that the query has several times, the values are joined by
    commas."""

    dialect: str  # and "+driver"
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    host: str | None = None
    port: int | None = None
    database: str | None = None
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The dialect without a driver."""
        return self.dialect.partition("+")[0]

    @property
    def file(self) -> str | None:
        """Of SQLite: its file's path; None where it is in memory, or SQLite's own URI says where."""
        is_file = self.kind == "sqlite" and self.database not in (None, "", ":memory:")
        return self.database if is_file and not str(self.database).startswith("file:") else None

    def without(self, *names: str) -> DatabaseUrl:
        """Without these of its query."""
        return replace(self, query={name: value for name, value in self.query.items() if name not in names})

    def whole(self) -> str:
        return self._text(self.password)

    def __str__(self) -> str:
        return self.without(*_SECRETS)._text(None if self.password is None else "***")

    __repr__ = __str__

    def _text(self, password: str | None) -> str:
        secret = "" if password is None else f":{password if password == '***' else quote(password, safe=' +')}"
        who = "" if self.user is None else f"{quote(self.user, safe=' +')}{secret}@"
        host = "" if self.host is None else f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port is None else f":{self.port}"
        path = "" if self.database is None else f"/{quote(self.database, safe=' +/')}"
        query = "&".join(f"{quote_plus(name)}={quote_plus(value)}" for name, value in sorted(self.query.items()))
        return f"{self.dialect}://{who}{host}{port}{path}{'?' if query else ''}{query}"


def url_of(text: str, whose: str) -> DatabaseUrl:
    """A user's URL. Raises ConfigError, which quotes none of it: any part may be a password with an odd character."""
    found = _URL.fullmatch(text)
    port = found["port"] if found else None
    if found is None or not (not port or (port.isascii() and port.isdigit())):
        raise ConfigError(
            "url-unreadable",
            f"{whose} URL cannot be read: write dialect://user:password@host:port/database, as "
            "mariadb://shop:secret@db:3306/shop, with odd characters percent-encoded (@ is %40, / is %2F, # is %23)",
        )
    named = (found[name] for name in ("user", "password", "database"))
    user, password, database = (None if part is None else unquote(part) for part in named)
    query: dict[str, str] = {}
    for name, value in parse_qsl(found["query"] or ""):
        query[name] = f"{query[name]},{value}" if name in query else value
    host = found["ipv6"] or found["host"]
    return DatabaseUrl(found["dialect"], user, password, host, int(port) if port else None, database, query)


def shown(url: str) -> str:
    """The URL without its secrets, as errors and plans name the database."""
    return str(url_of(url, "a database's"))
