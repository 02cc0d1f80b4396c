"""`python -m onefold.daemon.hosting FD LOGS NAME...` is a host, as `process` says.

All that it imports stays, so none of it is looked through for garbage: that took a seventh of the start.
"""

import gc

gc.disable()

from onefold.daemon.hosting.process import main  # noqa: E402  # what takes the time

gc.freeze()
gc.enable()
if __name__ == "__main__":
    main()
