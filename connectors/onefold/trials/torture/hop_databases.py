"""What the hops of a flow have, as an audit finds it in their databases."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

from onefold.core import Positions
from onefold.engine.mechanisms.transaction.channels import DRIVER, HOPS
from onefold.engine.mechanisms.transaction.database import View
from onefold.engine.state import folder_of
from onefold.trials.torture.torture_settings import PIPELINE
from onefold.trials.workload.workload_settings import Job


class HopDatabases:
    """Of a flow under `transaction`, whose ledgers have the numbers of channels, and not its source's positions."""

    def __init__(self, job: Job) -> None:
        self._root = Path(job.checkpoint) / folder_of(PIPELINE) / HOPS

    def planned(self) -> Positions:
        """Up to where the source is read."""
        at = self._kept(DRIVER).get("at")
        return Positions() if at is None else Positions.from_json(at)

    def is_delivered(self) -> bool:
        """Whether the sinks have all that comes of what is planned: every channel is taken to its end."""
        kept: dict[str, Any] = {}
        for folder in self._root.iterdir():
            kept |= self._kept(folder.name)
        sent = {name.removeprefix("sent "): number for name, number in kept.items() if name.startswith("sent ")}
        return all(kept.get(f"taken {channel}", (0,))[0] >= number for channel, number in sent.items())

    def _kept(self, name: str) -> dict[str, Any]:
        with closing(View(self._root / name)) as view:
            found = view.run("SELECT name, value FROM kept WHERE typeof(value) = 'text'")  # without the files of states
            return {name: json.loads(value) for name, value in found}
