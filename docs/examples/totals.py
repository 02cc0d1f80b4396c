"""Keeps what each account has ordered, without a JVM: python totals.py"""

from decimal import Decimal

import pyarrow.compute as pc

from onefold.flow import Flow, count, sum_
from onefold.local import KafkaServer, PostgresServer
from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource
from onefold.spark import exit_codes

SCHEMA = "id long, account long, amount decimal(12,2), at timestamp"


def totals(orders, postgres):
    """The flow: orders of more than nothing, counted and summed by account, into a table with a row of each."""
    flow = Flow("totals")
    paid = flow.source(orders, uid="orders").filter(pc.field("amount") > Decimal(0))
    by_account = paid.key_by("account").aggregate(uid="totals", orders=count(), amount=sum_("amount"))
    by_account.sink(PostgresSink(postgres, table="totals", mode="upsert", key="account", order="onefold_epoch"))
    return flow


if __name__ == "__main__":  # the flow's own test imports this file
    with exit_codes():
        kafka, postgres = KafkaServer(".onefold/local"), PostgresServer(".onefold/local")
        source = KafkaSource("orders", bootstrap_servers=kafka.bootstrap_servers, format="json", schema=SCHEMA)
        totals(source, postgres.url).run(checkpoint=".onefold/totals", workers=2)
