"""What the tests of flows share: a topic of numbered records, a database, and jobs between them."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
from harness.flow_job import FlowJob, FlowProcess
from harness.kafka.topics import in_order
from harness.support import wait_until

from onefold.clients.hbase import HBaseSettings, HBaseTable
from onefold.clients.hbase.rows.mapping import TableMapping


class Flows:
    """`put` records, `run` or `start` jobs, and see what came of it."""

    def __init__(self, servers: str, topic: str, url: str, directory: Path) -> None:
        self.servers, self.topic, self.url, self.directory = servers, topic, url, directory
        self.sent: list[tuple[int, int, int]] = []
        self._started: list[FlowProcess] = []

    def put(self, count: int, partitions: int = 4, topic: str = "") -> None:
        first = len(self.sent)
        records = [(i, i % 7, i * i % 1009) for i in range(first, first + count)]
        values = [b'{"id":%d,"account":%d,"n":%d}' % record for record in records]
        self.produce(topic or self.topic, values, partitions)
        self.sent += records

    def put_files(self, folder: Path, count: int, files: int = 4) -> None:
        """As many more records in new files of the folder, whose names have what names may have."""
        folder.mkdir(exist_ok=True)
        first = len(self.sent)
        records = [(i, i % 7, i * i % 1009) for i in range(first, first + count)]
        for number in range(files):
            lines = [b'{"id":%d,"account":%d,"n":%d}\n' % record for record in records[number::files]]
            (folder / f'{first} ü"#:%,{number}.json').write_bytes(b"".join(lines))
        self.sent += records

    def produce(self, topic: str, values: Sequence[bytes], partitions: int = 4) -> None:
        producer = in_order(self.servers)
        for number, value in enumerate(values):
            producer.produce(topic, value, partition=number % partitions)
        assert producer.flush(30) == 0

    def job(self, **settings: Any) -> FlowJob:
        place = {"checkpoint": str(self.directory / "checkpoint")}
        return FlowJob(self.servers, self.topic, self.url, **(place | settings))

    def start(self, job: FlowJob, failpoint: str = "") -> FlowProcess:
        self._started.append(FlowProcess(job, self.directory / f"start-{len(self._started)}", failpoint))
        return self._started[-1]

    def close(self) -> None:
        for process in self._started:
            process.kill()

    def finish(self, job: FlowJob) -> None:
        process = self.start(job)
        assert process.wait() == 0, process.log.read_text()[-3000:]

    def sql(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(query.encode()).fetchall()

    def until(self, query: str, rows: list[tuple[Any, ...]]) -> None:
        """Wait until the query, of tables that may not be there yet, has these rows."""

        def is_so() -> bool:
            with suppress(psycopg.errors.UndefinedTable):
                return self.sql(query) == rows
            return False

        wait_until(is_so, f"{rows} of {query}")

    def assert_rules_are_kept(self, job: FlowJob) -> None:
        """Of a job of the kind "ruled" that was killed once its workers had the factors: records that come now have
        them."""
        self.put(1_000)
        process = self.start(job)
        self.until("SELECT count(*) FROM rows", [(1_000,)])
        process.process.send_signal(signal.SIGTERM)
        assert process.wait() == 0, process.log.read_text()[-3000:]
        expected = [(id_, account, n * (account + 2)) for id_, account, n in self.sent]
        assert self.sql("SELECT id, account, n FROM rows ORDER BY id") == expected

    def of_hbase(self, servers: str, key: str = "id") -> list[tuple[int, int, int]]:
        """The rows of the table that has the topic's name: id, account, n."""
        columns = {name: f"f:{name} integer" for name in ("id", "account", "n") if name != key}
        mapping = TableMapping.of(self.topic, f"{key} integer", columns)
        parts = HBaseTable(HBaseSettings(servers), self.topic).scan(b"", b"", mapping.cell_columns)
        rows = [row for part in parts for row in mapping.decode(part.keys, part.values).to_pylist()]
        return sorted((row["id"], row["account"], row["n"]) for row in rows)

    def assert_exact(self, job: FlowJob) -> None:
        """Every record once, as the job's kind has it, and nothing in doubt."""
        match job.kind:
            case "rows" | "spread" | "union" | "letters" | "once" | "within":
                assert self.sql("SELECT id, account, n FROM rows ORDER BY id") == self.sent
            case "numbered" | "slow":
                assert self.sql("SELECT id FROM rows ORDER BY id") == [(i,) for i, _, _ in self.sent]
                counts = {a: sum(account == a for _, account, _ in self.sent) for a in range(7)}
                expected = [(a, number) for a, count in counts.items() for number in range(1, count + 1)]
                assert self.sql("SELECT account, number FROM rows ORDER BY account, number") == expected
            case "windows":
                windows: dict[tuple[int, int], list[int]] = {}
                for id_, account, n in self.sent:
                    windows.setdefault((account, (id_ // 100 + 1) * 100), []).append(n)
                found_rows = self.sql("SELECT account, window_end, total, records FROM rows ORDER BY 1, 2")
                assert found_rows == sorted((*at, sum(ns), len(ns)) for at, ns in windows.items())
            case "totals" | "spark totals":
                found = {
                    a: (int(total), count) for a, total, count in self.sql("SELECT account, total, records FROM rows")
                }
                mine = {a: [n for _, account, n in self.sent if account == a] for a in range(7)}
                assert found == {a: (sum(ns), len(ns)) for a, ns in mine.items()}
        assert self.sql("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()") == []
        states = self.sql("SELECT DISTINCT state FROM onefold_sinks.onefold_epochs WHERE state <> 'given_up'")
        assert states == [("complete",)]
