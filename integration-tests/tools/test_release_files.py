"""What `make dist` says of a wheel that is not as it should be: held by .ci/release/contents.py."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / ".ci/release"))
try:
    import building
    import contents
finally:
    sys.path.pop(0)

INFO = f"onefold-{contents.VERSION}.dist-info"
Files = dict[str, bytes]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return building.hatch(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


def faults(name: str, files: Files) -> set[str]:
    return {
        *contents.of_a_wheel(name, files, compiled=False),
        *contents.of_the_metadata(files.get(f"{INFO}/METADATA", b"")),
    }


@pytest.fixture(scope="module")
def as_it_is(wheel: Path) -> set[str]:
    """None, unless this checkout has files that git does not have."""
    found = faults(wheel.name, contents.unpacked(wheel))
    assert not [fault for fault in found if "not in git" not in fault]
    return found


def without(path: str) -> Callable[[Files], Files]:
    return lambda files: {name: content for name, content in files.items() if name != path}


def having(path: str, content: bytes) -> Callable[[Files], Files]:
    return lambda files: {**files, path: content}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without("onefold/daemon/page/style.css"), "lacks onefold/daemon/page/style.css"),
        (without("onefold/core/py.typed"), "a type checker sees none of onefold.core"),
        (without(f"{INFO}/licenses/LICENSE"), "another LICENSE"),
        (without(f"{INFO}/entry_points.txt"), "lacks the command onefold"),
        (having("onefold/core/tests/test_a.py", b""), "has onefold/core/tests/test_a.py, which is not in git"),
        (having("onefold/sources/native/_native.so", b"\x7fELF"), "which is not in git or should not be shipped"),
        (having("onefold/core/errors.py", b"pass"), "another onefold/core/errors.py than the checkout"),
        (having("onefold/core/errors.py", b"pass"), "another onefold/core/errors.py than its RECORD says"),
        (having(f"{INFO}/METADATA", b"Metadata-Version: 2.4\nName: onefold\nVersion: 9\n"), "metadata: Version is '9'"),
        (having(f"{INFO}/METADATA", b"Metadata-Version: 2.4\nName: onefold\n"), "metadata: 'version' is a required"),
        (having(f"{INFO}/WHEEL", b"Tag: py3-none-win32\n"), "says inside that it is for py3-none-win32"),
    ],
)
def test_a_wheel_that_is_not_what_the_checkout_makes_is_told_by_name(
    change: Callable[[Files], Files], says: str, wheel: Path, as_it_is: set[str]
) -> None:
    now = faults(wheel.name, change(contents.unpacked(wheel)))
    assert any(says in fault for fault in now - as_it_is)


def test_a_wheel_for_any_linux_is_told_since_an_index_takes_none(wheel: Path) -> None:
    named = wheel.name.replace("-any.", "-linux_x86_64.")
    assert any("not one of manylinux" in fault for fault in contents.of_a_wheel(named, {}, compiled=True))
