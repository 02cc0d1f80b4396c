"""`python -m onefold.sources.kafka.native`: how records are fetched here; `build` compiles the helper first."""

from __future__ import annotations

import sys

from onefold.sources.kafka.native.building import NotBuilt, build
from onefold.sources.kafka.native.library import described


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["build"]):
        print("usage: python -m onefold.sources.kafka.native [build]", file=sys.stderr)
        return 2
    if arguments:
        try:
            print(f"built {build()}")
        except NotBuilt as error:
            print(f"not built: {error}", file=sys.stderr)
            return 1
    print(described())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
