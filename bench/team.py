"""Processes that make ready, and then do what they are told, all at once: as many as everybody gets."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Generator, Sequence
from multiprocessing.synchronize import Barrier
from typing import Any

__all__ = ["Job", "Team"]

_READY_S_MAX = 120

# Gets ready up to its first yield, is sent an order there, and answers with the next one, as often as it is asked.
Job = Generator[Any, Any, None]


class Team:
    """One process for each of `arguments`; they are up and ready inside the `with`, and killed at its end."""

    def __init__(self, work: Callable[..., Job], arguments: Sequence[tuple[Any, ...]]) -> None:
        context = multiprocessing.get_context("spawn")
        self._ready = context.Barrier(len(arguments) + 1)
        pipes = [context.Pipe() for _ in arguments]
        self._pipes = [mine for mine, _ in pipes]
        self._processes = [
            context.Process(target=_member, args=(work, theirs, self._ready, *given), daemon=True)
            for (_, theirs), given in zip(pipes, arguments, strict=True)
        ]

    def __enter__(self) -> Team:
        for process in self._processes:
            process.start()
        self._ready.wait(_READY_S_MAX)
        return self

    def __exit__(self, *_: Any) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    def go(self, order: Any) -> None:
        for pipe in self._pipes:
            pipe.send(order)

    def answers(self) -> list[Any]:
        answers = [pipe.recv() for pipe in self._pipes]
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers


def _member(work: Callable[..., Job], pipe: Any, ready: Barrier, *arguments: Any) -> None:
    job = work(*arguments)
    next(job)
    ready.wait(_READY_S_MAX)
    while True:  # until it is killed: how long it takes to end is nobody's time
        order = pipe.recv()
        try:
            answer = job.send(order)
        except Exception as error:
            answer = RuntimeError(f"{type(error).__name__}: {error}")
        pipe.send(answer)
