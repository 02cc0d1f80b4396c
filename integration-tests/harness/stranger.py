"""Another user of this machine at the ports of a Spark driver: `calls_of` and `blocks_of` run this file, as nobody."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys

NOBODY = 65534
_ANSWER_S_MAX = 3
_CALLS = _BLOCKS = 8


def ports_of(pid: int) -> list[int]:
    """Where the process listens."""
    import psutil  # the stranger has it not

    connections = psutil.Process(pid).net_connections("tcp")
    return sorted({one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN})


def calls_of(port: int) -> list[str]:
    """What py4j's callback server answers a stranger who calls its first functions: nothing where it resets them."""
    return _as_nobody("calls", port)


def blocks_of(port: int) -> list[str]:
    """The broadcast blocks that a stranger reads at a port of Spark's: the tasks, with all that is pickled in them."""
    return _as_nobody("blocks", port)


def _as_nobody(what: str, port: int) -> list[str]:
    program = [sys.executable, "-I", __file__, what, str(port)]
    told = subprocess.run(program, capture_output=True, text=True, timeout=300, check=True)
    found: list[str] = json.loads(told.stdout)
    return found


def _connected(port: int) -> socket.socket:
    """Without looking up a name, which imports modules that nobody may not read."""
    stranger = socket.socket()
    stranger.settimeout(_ANSWER_S_MAX)
    stranger.connect(("127.0.0.1", port))
    return stranger


def _called(port: int) -> list[str]:
    found = []
    for number in range(_CALLS):
        try:
            with _connected(port) as stranger:
                stranger.sendall(f"c\np{number}\ncall\nro1\ni0\ne\n".encode())
                answer = stranger.recv(4096)
        except OSError:
            answer = b""
        found += [answer.decode()] if answer else []
    return found


def _read(port: int) -> list[str]:
    """Spark's shuffle protocol: OpenBlocks, and the first chunk of what it opened."""
    found = []
    for number in range(_BLOCKS):
        try:
            with _connected(port) as stranger:
                opened = _asked(stranger, b"\x03" + struct.pack(">q", 1), _open(f"broadcast_{number}_piece0"))
                if opened[0] == 4:  # an RpcResponse: the stream's number is in its StreamHandle
                    (stream,) = struct.unpack_from(">q", opened, 14)
                    chunk = _asked(stranger, b"\x00" + struct.pack(">qi", stream, 0), None)
                    found += [chunk[13:].decode("latin-1")] if chunk[0] == 1 else []
        except (OSError, struct.error):  # the port is none of Spark's, or asks for a secret
            break
    return found


def _open(block: str) -> bytes:
    texts = b"".join(struct.pack(">i", len(text)) + text.encode() for text in ("app", "exec"))
    return b"\x00" + texts + struct.pack(">ii", 1, len(block)) + block.encode()


def _asked(stranger: socket.socket, head: bytes, body: bytes | None) -> bytes:
    message = head + (b"" if body is None else struct.pack(">i", len(body)) + body)
    stranger.sendall(struct.pack(">q", 8 + len(message)) + message)
    (size,) = struct.unpack(">q", _exactly(stranger, 8))
    if not 8 < size < 1 << 31:
        raise OSError("that is none of Spark's ports")
    return _exactly(stranger, size - 8)


def _exactly(stranger: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = stranger.recv(size - len(found))
        if not part:
            raise OSError("closed")
        found += part
    return found


if __name__ == "__main__":
    if os.geteuid() == 0:  # otherwise it is the same user, whom a port does not tell from others
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    print(json.dumps({"calls": _called, "blocks": _read}[sys.argv[1]](int(sys.argv[2]))))
