"""`onefold letters`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from onefold.cli.console import AsJson, Named, Yes, print_json, say, shown, table_console
from onefold.core import ConfigError
from onefold.core.values.plain import plain

if TYPE_CHECKING:
    from onefold.operate.letters.letter import Letter, ReasonCount, RecordPlace
    from onefold.pipeline import Pipeline

_PLACE = re.compile(r"([a-zA-Z0-9._-]{1,249}):([0-9]{1,10})=([0-9]{1,19})")
_VALUE_MAX = 80


def letters(
    named: Named,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="So many, the newest, of each sink.")] = 20,
    reason: Annotated[str, typer.Option(help="Only those whose reason has this text in it.")] = "",
    by_reason: Annotated[bool, typer.Option("--by-reason", help="Count them by their reasons.")] = False,
    show: Annotated[str | None, typer.Option(metavar="PLACE", help="All that is kept of one: orders:0=17.")] = None,
    send: Annotated[
        list[str] | None, typer.Option(metavar="PLACE", help="Send its record to its topic again, once: orders:0=17.")
    ] = None,
    send_all: Annotated[
        bool, typer.Option("--send-all", help="The same of all that are listed, the oldest first; asks.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Show a pipeline's dead letters that are in Postgres tables, and send their records again. Exit code 1 where one
    was not sent."""
    from onefold.operate.letters.browse import newest, reasons
    from onefold.pipeline import read

    if sum(map(bool, (by_reason, show, send, send_all))) > 1:
        raise ConfigError("options-conflict", "give one of --by-reason, --show, --send and --send-all")
    if reason and (by_reason or show or send):
        raise ConfigError("options-conflict", "--reason chooses among those that are listed, or sent by --send-all")
    pipeline = read(named)
    if by_reason:
        counted = reasons(pipeline)
        print_json([asdict(each) for each in counted]) if as_json else _print_reasons(counted)
    elif show:
        _show(pipeline, _place(show), as_json)
    elif send:
        _send(pipeline, [_place(each) for each in send], as_json)
    else:
        found = newest(pipeline, limit, reason)
        if send_all:
            sendable = [each for each in reversed(found.letters) if each.is_sendable]
            if not yes:
                typer.confirm(f"Send {len(sendable):,} of {len(found.letters):,} letters again?", abort=True, err=True)
            _send(pipeline, [each.place for each in sendable if each.place is not None], as_json)
            return
        if as_json:
            print_json({"letters": [*map(_letter, found.letters)], "elsewhere": [*found.elsewhere]})
            return
        _print(found.letters)
        for sink in found.elsewhere:
            say(f"{sink} is no Postgres table: its dead letters are read with other tools")
        for source in pipeline.flow.sources():
            if source.on_error == "skip":
                say(f'bad records of {source.name} are skipped, and kept nowhere: on_error = "dead_letter" keeps them')


def _send(pipeline: Pipeline, places: Iterable[RecordPlace], as_json: bool) -> None:
    """Each by itself: what cannot be sent is said, and the next one is."""
    from onefold.operate.letters.letter import NotSendable
    from onefold.operate.letters.resend import send_again

    done: list[dict[str, Any]] = []
    for place in places:
        try:
            mark = send_again(pipeline, place)
            done.append({"place": _named(place), "offset": mark.sent_offset, "error": None})
            told = f"sent again, at offset {mark.sent_offset:,}" if mark.sent_offset is not None else "sent again"
        except NotSendable as error:
            done.append({"place": _named(place), "offset": None, "error": error.code})
            told = f"NOT sent: {error}"
        if not as_json:
            say(f"{_named(place)}: {told}")
    if as_json:
        print_json(done)
    if any(each["error"] for each in done):
        raise typer.Exit(1)


def _show(pipeline: Pipeline, place: RecordPlace, as_json: bool) -> None:
    from onefold.operate.letters.browse import whole

    letter = whole(pipeline, place)
    if letter is None:
        raise ConfigError("letter-unknown", f"pipeline {pipeline.name!r} has no dead letter of {_named(place)}")
    if as_json:
        print_json(_letter(letter))
        return
    for name, value in _letter(letter).items():
        if name == "headers":
            for key, text in value:
                _say_whole(f"header {key}: {'null' if text is None else text}")
        elif value is not None:
            _say_whole(f"{name}: {value}")


def _say_whole(text: str) -> None:
    typer.echo(plain(text, len(text)))


def _place(text: str) -> RecordPlace:
    from onefold.operate.letters.letter import RecordPlace

    if (found := _PLACE.fullmatch(text)) is None:
        raise ConfigError("option-value", f"{text!r} is no record's place: TOPIC:PARTITION=OFFSET, such as orders:0=17")
    return RecordPlace(found[1], int(found[2]), int(found[3]))


def _named(place: RecordPlace) -> str:
    return f"{place.topic}:{place.partition}={place.offset}"


def _print(found: Iterable[Letter]) -> None:
    table = Table("sink", "epoch", "record", "reason", "value", "sent again", box=None)
    for letter in found:
        value = _text(letter.value) or ""
        table.add_row(
            shown(letter.sink),
            f"{letter.epoch:,}",
            shown(_named(letter.place) if letter.place is not None else letter.position or ""),
            shown(letter.reason),
            shown(value if len(value) <= _VALUE_MAX else f"{value[:_VALUE_MAX]}..."),
            "" if letter.mark is None else letter.mark.state.value,
        )
    table_console().print(table if table.row_count else "no dead letters")


def _print_reasons(found: Iterable[ReasonCount]) -> None:
    table = Table("letters", "sink", "epochs", "reason", box=None)
    for each in found:
        epochs = f"{each.first_epoch:,} to {each.last_epoch:,}"
        table.add_row(f"{each.letters:,}", shown(each.sink), epochs, shown(each.reason))
    table_console().print(table if table.row_count else "no dead letters")


def _letter(letter: Letter) -> dict[str, Any]:
    mark = letter.mark
    return {
        "sink": letter.sink,
        "epoch": letter.epoch,
        "at": None if letter.at is None else letter.at.isoformat(),
        "place": None if letter.place is None else _named(letter.place),
        "position": letter.position,
        "reason": letter.reason,
        "key": _text(letter.key),
        "value": _text(letter.value),
        "value_bytes": letter.value_bytes,
        "headers": [[key, _text(value)] for key, value in letter.headers],
        "sent": None if mark is None else {"state": mark.state.value, "offset": mark.sent_offset},
    }


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")
