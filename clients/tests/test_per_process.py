"""What a process keeps, and its forked child."""

import subprocess
import sys

CODE = """
import os
from onefold.clients.per_process import PerProcess

class Client:
    def __del__(self):
        print("closed", os.getpid() == parent, flush=True)

parent = os.getpid()
kept = PerProcess(list[Client])
kept.now.append(Client())
with kept.lock:  # as another thread of the parent may hold it
    child = os.fork()
    if not child:
        assert kept.now == [] and not kept.lock.locked()
        print("child", flush=True)
        os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert len(kept.now) == 1
"""


def test_a_forked_child_starts_anew_and_closes_nothing_of_its_parents() -> None:
    ended = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True)
    assert ended.stdout.splitlines()[:1] == ["child"]
    assert "closed False" not in ended.stdout
