"""A run of minutes whose output is a file, or the log of a CI, says that it goes on and where it is."""

from __future__ import annotations

import io
import threading

from rich.console import Console
from rich.progress import Progress

from onefold.trials.heartbeat import heartbeat, said_of


class Lines(io.StringIO):
    """What was printed; `wait` returns when so many lines were."""

    def __init__(self) -> None:
        super().__init__()
        self._more = threading.Condition()

    def write(self, text: str) -> int:
        with self._more:
            self._more.notify_all()
            return super().write(text)

    def wait(self, lines: int) -> list[str]:
        with self._more:
            assert self._more.wait_for(lambda: self.getvalue().count("\n") >= lines, 20)
        return self.getvalue().splitlines()


def test_a_file_gets_a_line_each_time_with_what_is_done_by_then() -> None:
    said = iter(["round 1: [red]killing[/]", "round 2: a line of more than eighty columns, which stays one line " * 2])
    file = Lines()
    with heartbeat(Console(file=file, width=80), lambda: next(said, "more"), every_s=0.01):
        lines = file.wait(2)
    assert lines[0] == "  0:00 round 1: [red]killing[/]"
    assert lines[1].startswith("  0:00 round 2: ") and lines[1].endswith("one line ")
    assert not [thread for thread in threading.enumerate() if thread.name == "heartbeat"]


def test_a_terminal_has_a_bar_and_gets_no_line() -> None:
    file = Lines()
    with heartbeat(Console(file=file, force_terminal=True), lambda: "unseen", every_s=0.0):
        assert not [thread for thread in threading.enumerate() if thread.name == "heartbeat"]
    assert file.getvalue() == ""


def test_of_a_bar_it_says_each_task_that_is_not_finished() -> None:
    bar = Progress(disable=True)
    assert said_of(bar) == "goes on"
    bar.add_task("Kafka's jars", total=None)
    bar.add_task("12,000 schedules, the last of two-phase", total=160, completed=7)
    bar.update(bar.add_task("done", total=2), completed=2)
    bar.add_task("hidden", total=2, visible=False)
    assert said_of(bar) == "Kafka's jars; 12,000 schedules, the last of two-phase, 7 of 160"
