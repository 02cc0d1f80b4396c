"""The entry point of the `onefold` command: errors in one line, with an exit code that says what kind they are."""

from __future__ import annotations

import sys

from onefold.core import OnefoldError
from onefold.core.errors import exit_code
from onefold.core.extras import naming_extras


def main() -> None:
    """Run the command. What its extra brings is imported here, so that a missing one is such a line, too."""
    try:
        with naming_extras():
            from onefold.cli.main import app

            app()
    except OnefoldError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(exit_code(error))


if __name__ == "__main__":
    main()
