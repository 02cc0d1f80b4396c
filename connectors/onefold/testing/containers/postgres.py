"""Postgres in a container: a primary, or an asynchronous standby of one."""

from __future__ import annotations

from collections.abc import Mapping

from onefold.core.errors import ConfigError
from onefold.local.secrets import new_password
from onefold.testing.containers.network import Network
from onefold.testing.containers.server_container import ServerContainer

_NAME = "onefold"  # of the user and of the database
_CONNECT_S_MAX = 3


class PostgresContainer(ServerContainer):
    """A Postgres with user and database `onefold`; fsync and checksums are on, and so are prepared transactions.

    Its password is random, and in its URL. Of another one as `primary` it is an asynchronous streaming standby, for
    reading, until `promote`.
    """

    name = "postgres"
    image = "postgres"
    ports = (5432,)
    shm = "256m"

    def __init__(
        self,
        network: Network | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        primary: PostgresContainer | None = None,
    ) -> None:
        if network is not None and primary is not None and network is not primary.network:
            raise ConfigError(
                "primary-out-of-reach",
                "a standby has to be in the network of its primary, and another one was given: leave `network` away",
            )
        super().__init__(network or (primary.network if primary else None), settings=settings)
        self._owns_network = network is None and primary is None
        self._primary = primary
        self.password: str = primary.password if primary else new_password()

    @property
    def url(self) -> str:
        return self.url_of(_NAME)

    def url_of(self, database: str) -> str:
        """The URL of another database, as the same user."""
        return f"postgresql://{_NAME}:{self.password}@{self.reached_at(self.ports[0])}/{database}"

    def promote(self) -> None:
        """Makes a standby a primary of its own. What the old primary had not sent by then is not in it."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True, connect_timeout=_CONNECT_S_MAX) as connection:
            connection.execute("SELECT pg_promote()")  # waits until it is done

    def _environment(self) -> dict[str, str]:
        environment = {"POSTGRES_USER": _NAME, "POSTGRES_DB": _NAME, "POSTGRES_PASSWORD": self.password}
        if self._primary is not None:
            environment["POSTGRES_PRIMARY"] = f"{self._primary.address}:5432"
        return environment

    def _command(self) -> list[str]:
        return [part for name, value in self.settings.items() for part in ("-c", f"{name}={value}")]

    def _is_ready(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url, connect_timeout=_CONNECT_S_MAX).close()
        except psycopg.OperationalError:
            return False
        return True
