"""Keeps what each account has ordered, without a JVM: python totals.py"""

from decimal import Decimal

import pyarrow.compute as pc

from onefold.flow import Flow, Tumbling, bounded, count, sum_
from onefold.local import KafkaServer, PostgresServer
from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource
from onefold.spark import exit_codes

SCHEMA = "id long, account long, amount decimal(12,2), at timestamp"


def totals(orders, postgres):
    """The flow: orders of more than nothing, counted and summed by account: so far, a row each; and by minutes."""
    flow = Flow("totals")
    source = flow.source(orders, uid="orders", watermarks=bounded("at", "5 seconds"))  # none comes later than that
    by_account = source.filter(pc.field("amount") > Decimal(0)).key_by("account")
    so_far = by_account.aggregate(uid="totals", orders=count(), amount=sum_("amount"))
    so_far.sink(PostgresSink(postgres, table="totals", mode="upsert", key="account", order="onefold_epoch"))
    minutes = by_account.window(Tumbling("1 minute")).aggregate(uid="minutes", orders=count(), amount=sum_("amount"))
    minutes.sink(PostgresSink(postgres, table="minutes"))  # once each, when it is over
    return flow


if __name__ == "__main__":  # the flow's own test imports this file
    with exit_codes():
        kafka, postgres = KafkaServer(".onefold/local"), PostgresServer(".onefold/local")
        source = KafkaSource("orders", bootstrap_servers=kafka.bootstrap_servers, format="json", schema=SCHEMA)
        totals(source, postgres.url).run(checkpoint=".onefold/totals", workers=2)
