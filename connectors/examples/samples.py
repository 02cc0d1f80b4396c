"""Writes the sample data, the same each time: python samples.py"""

import datetime as dt
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

COUNT = 360
BEGIN = dt.datetime(2026, 11, 20, 8, tzinfo=dt.UTC)


def orders(chance: random.Random) -> Iterator[dict[str, Any]]:
    """One in 40 has no amount, and is filtered."""
    for number in range(1, COUNT + 1):
        amount = 0 if number % 40 == 0 else chance.randint(1, 50_000)
        yield {"id": number, "account": chance.randint(1, 50), "amount": money(amount), "at": at(number)}


def events(chance: random.Random) -> Iterator[dict[str, Any]]:
    """What visitors looked at and bought; some events come late."""
    for number in range(1, COUNT + 1):
        yield {
            "id": number,
            "visitor": f"v{chance.randint(1, 30)}",
            "city": chance.choice(["Aachen", "Brno", "Cádiz", "Delft"]),
            "topic": chance.choice(["books", "bikes", "maps", "tea"]),
            "spent": money(chance.choice([0, 0, 0, 1_250, 3_999])),
            "at": at(number - chance.choice([0, 0, 0, 25])),
        }


def payments(chance: random.Random) -> Iterator[dict[str, Any]]:
    for number in range(1, COUNT + 1):
        currency = chance.choice(["EUR", "USD", "CZK"])
        amount = money(chance.randint(1, 200_000))
        yield {"id": number, "account": chance.randint(1, 50), "currency": currency, "amount": amount, "at": at(number)}


def customers(chance: random.Random) -> Iterator[dict[str, Any]]:
    """Versions of 60 customers, as a change feed has them: out of order, some twice, and one in ten is a deletion."""
    versions: dict[int, int] = {}
    found = []
    for _ in range(COUNT - 20):
        customer = chance.randint(1, 60)
        versions[customer] = versions.get(customer, 0) + 1
        change = {"id": customer, "version": versions[customer], "name": f"Customer {customer}"}
        email = f"c{customer}.{versions[customer]}@example.com"
        found.append({**change, "email": email, "gone": chance.random() < 0.1})
    found += [dict(change) for change in chance.sample(found, 20)]
    places = {id(change): number + chance.randint(0, 15) for number, change in enumerate(found)}
    yield from sorted(found, key=lambda change: places[id(change)])


def money(cents: int) -> str:
    return f"{cents / 100:.2f}"


def at(number: int) -> str:
    return (BEGIN + dt.timedelta(seconds=7 * number)).isoformat()


SAMPLES: dict[str, Callable[[random.Random], Iterator[dict[str, Any]]]] = {
    "orders/orders.jsonl": orders,
    "profile/events.jsonl": events,
    "enrich/payments.jsonl": payments,
    "mirror/customers.jsonl": customers,
}


def sample(name: str) -> str:
    """A file's text: one JSON object a line."""
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in SAMPLES[name](random.Random(name)))


if __name__ == "__main__":
    for name in SAMPLES:
        (Path(__file__).parent / name).write_text(sample(name))
