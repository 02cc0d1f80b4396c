"""The flow of totals.py without servers: pytest test_totals_rows.py"""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from totals import SCHEMA, totals

from onefold.core import BadRecord
from onefold.sources import KafkaSource

AT = datetime(2026, 11, 26, 12, tzinfo=UTC)
ORDERS = KafkaSource("orders", bootstrap_servers="nobody:9092", format="json", schema=SCHEMA)


def test_a_minute_comes_out_once_when_an_order_says_that_it_is_over(flow_test):
    test = flow_test(totals(ORDERS, "postgresql://nobody/shop"))
    assert test.epoch({"orders": [(1, 7, Decimal("2.50"), AT)]})["minutes"] == []
    later = AT + timedelta(minutes=1, seconds=5)
    (minute,) = test.epoch({"orders": [(2, 7, Decimal("1.00"), AT), (3, 8, Decimal("9.00"), later)]})["minutes"]
    assert (minute["window_start"], minute["account"], minute["amount"]) == (AT, 7, Decimal("3.50"))


def test_orders_are_summed_by_account_also_after_a_crash(flow_test):
    test = flow_test(totals(ORDERS, "postgresql://nobody/shop"))
    first = test.epoch({"orders": [(1, 7, Decimal("2.50"), AT), (2, 7, Decimal("0.00"), AT)]})
    assert first["totals"] == [{"account": 7, "orders": 1, "amount": Decimal("2.50"), "onefold_epoch": 1}]
    with pytest.raises(BadRecord):
        test.epoch({"orders": [(3, 7, Decimal("0.005"), AT)]})  # no amount of two places: nothing of it counts
    test.restore()
    second = test.epoch({"orders": [{"id": 4, "account": 7, "amount": Decimal("1.25"), "at": AT}]})
    assert second["totals"] == [{"account": 7, "orders": 2, "amount": Decimal("3.75"), "onefold_epoch": 2}]
