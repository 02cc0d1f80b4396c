"""Kafka in a container: one node that is both broker and controller."""

from __future__ import annotations

from onefold.testing.containers.server_container import ServerContainer

_INSIDE, _OUTSIDE = 9092, 29092
_PROBE_S_MAX = 2.0


class KafkaContainer(ServerContainer):
    """A broker without passwords. Topics are made by its clients, and records are kept until their topic goes."""

    name = "kafka"
    image = "kafka"

    @property
    def ports(self) -> tuple[int, ...]:  # type: ignore[override]  # clients elsewhere than in its network take another
        return (_INSIDE,) if self.network.start().direct else (_OUTSIDE,)

    @property
    def bootstrap_servers(self) -> str:
        return self.reached_at(self.ports[0])

    def _environment(self) -> dict[str, str]:
        environment = {
            "KAFKA_ADVERTISED": self.address,
            "KAFKA_SETTINGS": "".join(f"{name}={value}\n" for name, value in self.settings.items()),
        }
        if not self.network.direct:
            environment["KAFKA_OUTSIDE"] = self.bootstrap_servers
        return environment

    def _is_ready(self) -> bool:
        if not self._listens():  # librdkafka would write each refused connection to stderr
            return False
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        settings: dict[str, str | int | float | bool] = {
            "bootstrap.servers": self.bootstrap_servers,
            "log_level": 0,
            "socket.timeout.ms": 2000,
        }
        try:
            return bool(AdminClient(settings).list_topics(timeout=_PROBE_S_MAX).brokers)
        except KafkaException:
            return False
