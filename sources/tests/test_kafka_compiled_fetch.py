"""The compiled fetch without a server: whether it is built, found and used, and the values that it hands over."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.core.errors import ConfigError
from onefold.sources import KafkaSource
from onefold.sources.formats.json import JsonParser
from onefold.sources.formats.values import Lines, separate
from onefold.sources.kafka.fetching import compiled_fetch
from onefold.sources.kafka.fetching.compiled_fetch import described, find, helper
from onefold.sources.native import library
from onefold.sources.native.building import LIBRARY, NotBuilt, build, compiler

ROOT = Path(__file__).parents[2]
needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C compiler here")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """The library as it was installed, or built here."""
    forget()
    installed = library.load()
    forget()
    return (
        build(tmp_path / "made.so") if isinstance(installed, str) else Path(shutil.copy(LIBRARY, tmp_path / "made.so"))
    )


@pytest.fixture
def place() -> Iterator[pytest.MonkeyPatch]:
    """What a test changes of where the helper is looked for is undone before anybody looks again."""
    forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(library.VARIABLE, raising=False)
        yield patch
    forget()


def forget() -> None:
    library.load.cache_clear()
    find.cache_clear()


def reason(patch: pytest.MonkeyPatch, path: Path) -> str:
    """Why the library there is not used; "auto" goes without it, and "required" says why it can't."""
    patch.setenv(library.LIBRARY_VARIABLE, str(path))
    found = find()
    assert isinstance(found, str)
    assert helper("auto") is None
    assert described().endswith(found)
    with raises(ConfigError, "compiled-helper-missing") as caught:
        helper("required")
    assert found in str(caught.value)
    return found


def test_a_helper_that_is_missing_or_damaged_is_not_used_and_the_reason_is_told(
    place: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "was not built" in reason(place, tmp_path / "nothing.so")
    forget()
    (tmp_path / "noise.so").write_bytes(b"\x7fELF and then nothing")
    assert "does not load" in reason(place, tmp_path / "noise.so")
    forget()
    assert "does not load" in reason(place, tmp_path / ("no name is so long" * 100))


@needs_compiler
def test_a_helper_of_another_source_or_for_another_librdkafka_is_not_used(
    place: pytest.MonkeyPatch, made: Path
) -> None:
    place.setattr(library, "source_hash", lambda: "another")
    assert "built from another source" in reason(place, made)
    place.undo()
    forget()
    place.setattr(compiled_fetch.cimpl, "__file__", pa.lib.__file__)
    assert "does not show its function rd_kafka_version" in reason(place, made)


@needs_compiler
def test_the_helper_is_used_unless_it_is_turned_off_and_says_so_once(
    place: pytest.MonkeyPatch, made: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place.setenv(library.LIBRARY_VARIABLE, str(made))
    place.setattr(compiled_fetch, "_told", set())
    with caplog.at_level(logging.INFO, "onefold.sources.kafka"):
        assert helper("auto") is helper("required") is not None
    assert [record.message for record in caplog.records] == [described()]
    assert "in compiled batches (librdkafka " in described()
    place.setenv(library.VARIABLE, "off")
    assert helper("auto") is None
    assert "turned off" in described()
    assert helper("required") is not None  # what a source says counts more than the process
    assert helper("off") is None
    place.setenv(library.VARIABLE, "1")
    with raises(ConfigError, "option-value", "'1'"):
        helper("auto")


def test_a_source_carries_the_choice_in_its_options() -> None:
    source = KafkaSource("orders", bootstrap_servers="b:1", compiled_fetch="off")
    assert KafkaSource.from_options(source.options()) == source
    assert "turned off" in source.fetching
    assert "compiledFetch" not in KafkaSource("orders", bootstrap_servers="b:1").options()
    with raises(ConfigError, "option-value", "'on'"):
        KafkaSource("orders", bootstrap_servers="b:1", compiled_fetch="on")


@pytest.mark.skipif(sys.platform != "linux" or which("readelf") is None, reason="it reads an ELF file")
@needs_compiler
def test_the_helper_is_built_so_that_an_overflow_ends_the_process(made: Path) -> None:
    told = subprocess.run(["readelf", "-dW", "--dyn-syms", str(made)], capture_output=True, text=True, check=True)
    assert "__stack_chk_fail" in told.stdout
    assert "BIND_NOW" in told.stdout or "Flags: NOW" in told.stdout


@needs_compiler
def test_made_up_messages_of_a_broker_overflow_nothing(tmp_path: Path) -> None:
    """As the sanitizers of addresses and undefined behaviour see it: offsets up to the last, events, headers."""
    here, native = Path(__file__).parent, Path(library.__file__).parent
    made, command = tmp_path / "fuzz", compiler()
    assert command is not None
    flags = ["-std=c11", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{native}"]
    compiling = [*command, *flags, str(here / "fetch_fuzz.c"), "-o", str(made), "-lpthread", "-ldl"]
    compiled = subprocess.run(compiling, capture_output=True, text=True, timeout=120, check=False)
    if compiled.returncode != 0 and ("sanitize" in compiled.stderr or "asan" in compiled.stderr):
        pytest.skip(f"this compiler has no sanitizers: {compiled.stderr}")
    assert compiled.returncode == 0, compiled.stderr
    done = subprocess.run([str(made), "100", "7"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_build_that_fails_says_why_and_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fetch.so").write_text("before")
    if compiler() is not None:
        with pytest.raises(NotBuilt, match="-fno-such-flag"):
            build(tmp_path / "fetch.so", ["-fno-such-flag"])
    monkeypatch.setenv("CC", "/no/such/compiler")
    with pytest.raises(NotBuilt, match="no C compiler was found"):
        build(tmp_path / "fetch.so")
    assert [path.name for path in tmp_path.iterdir()] == ["fetch.so"]
    assert (tmp_path / "fetch.so").read_text() == "before"


@pytest.mark.proof
@pytest.mark.parametrize(
    ("more", "is_compiled"),
    [
        pytest.param({}, True, marks=needs_compiler),
        ({"CC": "/no/such/compiler"}, False),
        ({"ONEFOLD_COMPILED": "off"}, False),
    ],
)
def test_a_wheel_has_the_helper_where_there_is_a_compiler_and_is_whole_without_it(
    tmp_path: Path, more: dict[str, str], is_compiled: bool
) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    environment = {**os.environ, "ONEFOLD_COMPILED": "auto", **more}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert ("py3-none-any" in wheel.name) != is_compiled
    assert "py3-none-" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert ("onefold/sources/native/_native.so" in names) == is_compiled
    assert "onefold/sources/native/fetch.c" in names  # to be built later
    if "CC" in more:
        assert "without its compiled library: no C compiler" in done.stderr + done.stdout


def lines(*values: bytes) -> Lines:
    array = pa.array([value + b"\n" for value in values], pa.binary())
    are_objects = all(value[:1] == b"{" and value[-1:] == b"}" and len(value) > 1 for value in values)
    return Lines(array, are_objects=are_objects, is_ascii=b"".join(values).isascii())


def test_lines_are_a_sequence_of_their_values_and_slices_share_the_buffer() -> None:
    values = [b"{}", b"", b"\n", b'{"a":1}']
    whole = lines(*values)
    assert len(whole) == 4
    assert list(whole) == [whole[i] for i in range(4)] == values
    assert list(whole[1:][1:]) == values[2:]
    assert whole.buffer().to_pybytes() == b'{}\n\n\n\n{"a":1}\n'
    assert whole[1:3].buffer().to_pybytes() == b"\n\n\n"
    assert whole[1:3].buffer().address == whole.buffer().address + 3
    nulls = Lines(pa.array([b"{}\n", None], pa.binary()), are_objects=False, is_ascii=True)
    assert list(nulls) == [b"{}", None] == [nulls[0], nulls[1]]


def test_lines_are_parsed_as_they_lie_there_and_refused_as_other_values_are() -> None:
    parser = JsonParser(pa.schema({"a": pa.int64()}))
    good = lines(b'{"a":1}', b'{"a":2,\n"x":"\xc3\xa9"}', b"{}", b'{"a":4}')
    assert parser.parse(good).column(0).to_pylist() == [1, 2, None, 4]
    assert parser.parse(good[1:3]).column(0).to_pylist() == [2, None]
    for value in [b'{"a":1', b"{}{}", b'{}\n{"a":1}', b'{"s":"\xff"}', b'{"a":1.5}', b"", b" {]} "]:
        values = [b"{}", value, b'{"a":3}']
        found = [separate(each, parser, bad_max=1) for each in (lines(*values), values)]
        assert found[0].bad == found[1].bad
        assert [bad.index for bad in found[0].bad] == [1]
        for each in found:
            assert [row for rows in each.rows for row in rows.column(0).to_pylist()] == [None, 3]
