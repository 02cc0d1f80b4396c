"""`python -m onefold.sources.compiled`: what of the compiled library is used here; `build` compiles it first."""

from __future__ import annotations

import sys

from onefold.sources.formats.compiled_json import described as json_described
from onefold.sources.kafka.fetching.compiled_fetch import described
from onefold.sources.native.building import NotBuilt, build


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["build"]):
        print("usage: python -m onefold.sources.compiled [build]", file=sys.stderr)
        return 2
    if arguments:
        try:
            print(f"built {build()}")
        except NotBuilt as error:
            print(f"not built: {error}", file=sys.stderr)
            return 1
    print(described())
    print(json_described())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
