"""Orders of which some are bad, late, repeated or deletions, and who is known to refuse the bad ones."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

ACCOUNTS = 100_000
KEYS = 5_000
BAD = 0.01
DELETED = 0.10
LATE = 0.15
REPEATED = 0.03  # the same version of the same order, with another content

_COLUMNS = "account bigint NOT NULL CHECK (account > 0), amount numeric(12,2), at timestamptz, note text"
TABLES = {  # by mode; `{table}` is made before the pipeline starts
    "append": f"CREATE TABLE {{table}} (id bigint, {_COLUMNS})",
    "upsert": f"CREATE TABLE {{table}} (id bigint PRIMARY KEY, version bigint, {_COLUMNS})",
}

_REFUSED: tuple[dict[str, object], ...] = ({"account": None}, {"account": 0}, {"note": "\0"})
_UNREADABLE: tuple[dict[str, object], ...] = ({"account": "none"}, {"at": "some day"}, {})  # the last lacks its end

_FIRST = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class MixedOrder:
    """A record as the pipeline reads it; without a mode's columns, `version` is 0 and `is_deletion` False."""

    id: int
    version: int
    account: int | None
    amount: Decimal
    at: datetime
    is_deletion: bool
    note: str

    @classmethod
    def parse(cls, value: bytes) -> MixedOrder:
        """Raises ValueError where no order can be read from it."""
        order = json.loads(value, parse_float=Decimal)
        account = order["account"]
        return cls(
            order["id"],
            order.get("version", 0),
            None if account is None else int(account),
            Decimal(order["amount"]),
            datetime.fromisoformat(order["at"]),
            order.get("gone", False),
            order.get("note", ""),
        )

    @property
    def has_no_form(self) -> bool:
        """No text in Postgres holds a NUL: it is refused before it is compared with any other version."""
        return "\0" in self.note

    @property
    def is_bad(self) -> bool:
        return self.has_no_form or self.breaks_rule

    @property
    def breaks_rule(self) -> bool:
        """A constraint of the table forbids it: it is refused when it is about to be written, as no deletion is."""
        return not self.is_deletion and (self.account is None or self.account <= 0)


def mixed_orders(
    rows: int, seed: int, mode: str, bad_rows: bool, *, unreadable: bool = False, accounts: int = ACCOUNTS
) -> Iterator[bytes]:
    """The same for the same arguments. `number` counts the records; so does `id`, where orders have no versions.

    Bad rows are what Postgres refuses; or, if they are to be `unreadable`, what no order can be read from.
    """
    rng = random.Random(seed)
    last: dict[int, int] = {}
    for number in range(rows):
        cents = rng.randrange(-1000, 100_000)
        order: dict[str, object] = {"number": number, "id": number, "account": rng.randrange(1, accounts)}
        order["at"] = (_FIRST + timedelta(milliseconds=number)).isoformat()
        if mode == "upsert":
            order["id"] = key = rng.randrange(KEYS)
            order["version"], order["gone"] = _version(rng, number, last.get(key, number)), rng.random() < DELETED
            last[key] = max(last.get(key, number), number)
        bad = rng.choice(_UNREADABLE if unreadable else _REFUSED) if bad_rows and rng.random() < BAD else None
        order |= bad or {}
        amount = f"{'-' if cents < 0 else ''}{abs(cents) // 100}.{abs(cents) % 100:02d}"
        value = f'{json.dumps(order, separators=(",", ":"))[:-1]},"amount":{amount}}}'.encode()
        yield value[:-1] if bad == {} else value


def _version(rng: random.Random, number: int, last: int) -> int:
    chance = rng.random()
    if chance < LATE:
        return last - rng.randrange(1, 3 * KEYS)
    return last if chance < LATE + REPEATED else number
