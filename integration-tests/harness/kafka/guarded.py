"""A broker with an authorizer: what nobody was allowed is denied."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic
from harness.certificates import secure_kafka
from harness.support import wait_until

from onefold.sinks import KafkaSink

__all__ = ["Guarded", "guarded_kafka"]


@dataclass
class Guarded:
    """A broker where alice logs in over TLS and may do nothing that no ACL allows; whoever comes by the first address
    may do everything."""

    server: Any
    settings: dict[str, str]

    def __post_init__(self) -> None:
        self.servers = self.server.bootstrap_servers
        self.admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def topic(self) -> str:
        name = f"test-{uuid.uuid4().hex[:12]}"
        self.admin.create_topics([NewTopic(name, 2, 1)])[name].result(20)
        return name

    def allow(self, kind: ResourceType, name: str, *operations: AclOperation, prefixed: bool = False) -> None:
        pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
        acls = [AclBinding(kind, name, pattern, "User:alice", "*", op, AclPermissionType.ALLOW) for op in operations]
        for future in self.admin.create_acls(acls).values():
            future.result(20)

    def deny(self, kind: ResourceType, prefix: str, operation: AclOperation) -> None:
        """Take an operation away again, until the broker has heard of it."""
        of = AclBindingFilter(
            kind, prefix, ResourcePatternType.PREFIXED, "User:alice", "*", operation, AclPermissionType.ALLOW
        )
        for future in self.admin.delete_acls([of]).values():
            future.result(20)
        wait_until(lambda: not self.admin.describe_acls(of).result(20), "an ACL that is gone")

    def sink(self, topic: str, **more: Any) -> KafkaSink:
        settings = {**self.settings, **more.pop("client_config", {})}
        return KafkaSink(topic, bootstrap_servers=self.server.secure_servers, client_config=settings, **more)


@contextmanager
def guarded_kafka(home: Path) -> Iterator[Guarded]:
    rules = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with secure_kafka(home, rules) as (server, settings):
        yield Guarded(server, settings)
