"""What goes wrong with servers in containers."""

from __future__ import annotations

from onefold.core.errors import OnefoldError


class ContainerError(OnefoldError):
    """A container cannot be started, reached or cut off; the message says why and what to do."""
