"""What `onefold torture` refuses before it starts a server."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from onefold.cli.main import app


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--mechanism", "transaction"], "the engine has these"),
        (["--runtime", "engine", "--mechanism", "microbatch", "--alignment", "unaligned"], "of barriers alone"),
    ],
)
def test_a_protection_that_no_flow_could_start_with_is_refused(options: list[str], says: str) -> None:
    result = CliRunner().invoke(app, ["torture", *options])
    assert result.exit_code == 2 and says in result.output
