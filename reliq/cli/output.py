"""What every command prints goes through here: tables, details, JSON lines, notes, progress.

``rich`` makes tables and progress nicer where it is installed and the output is a terminal. It is imported only
then; everywhere else the output is plain aligned text, the same for people, pipes and tests.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TextIO

from ..shown import plain, safe


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its head, how a row's cell is made, and where its text stands."""

    head: str
    cell: Callable[[Any], object]
    is_right: bool = False


def add_json(parser: argparse.ArgumentParser) -> None:
    """The ``--json`` option."""
    parser.add_argument("--json", action="store_true", help="print JSON, one object per line")


def write(text: str, stream: TextIO | None = None) -> None:
    """Print text; where the stream's encoding lacks a character, its escape stands in."""
    stream = stream or sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream)


def note(text: str) -> None:
    """A word beside the output: it goes to stderr, so that pipes get data only."""
    sys.stdout.flush()
    write(f"reliq: {text}", sys.stderr)


def write_json(value: Any) -> None:
    """One object on one line."""
    write(to_json(value))


def to_json(value: Any) -> str:
    """JSON for whatever jobs carry; what has no JSON form is told in words.

    In ASCII, so that no character of a payload turns the text of a terminal around.
    """
    return json.dumps(plain(value), ensure_ascii=True)


def short(value: object, limit: int = 60) -> str:
    """The beginning of a text, for a cell of a table."""
    text = safe(str(value))
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def write_table(rows: Sequence[Any], columns: Sequence[Column], empty: str) -> None:
    """A table for people; ``empty`` is what is said when there are no rows."""
    if not rows:
        write(empty)
        return
    cells = [["" if (cell := column.cell(row)) is None else safe(str(cell)) for column in columns] for row in rows]
    rich = _rich(sys.stdout)
    if rich is None:
        write(plain_table(cells, columns))
        return
    table = rich.table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        how = {"justify": "right", "no_wrap": True} if column.is_right else {"overflow": "fold"}
        table.add_column(column.head, **how)
    for row in cells:
        table.add_row(*(rich.text(cell) for cell in row))
    rich.console(sys.stdout).print(table)


def plain_table(cells: Iterable[Sequence[str]], columns: Sequence[Column]) -> str:
    """Aligned text."""
    lines = [[column.head for column in columns], *cells]
    widths = [max(len(line[n]) for line in lines) for n in range(len(columns))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column.is_right else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in lines
    )


def write_details(pairs: Iterable[tuple[str, object]]) -> None:
    """Names and values below each other; None is left out."""
    found = [(name, safe(str(value))) for name, value in pairs if value is not None]
    width = max((len(name) for name, _ in found), default=0)
    for name, value in found:
        write(f"{name.ljust(width)}  {value}".rstrip())


@contextlib.contextmanager
def progress(doing: str) -> Iterator[Callable[[str], None]]:
    """Tell on stderr how far a long step is: ``tell(text)`` replaces what was told. Silent without a terminal.

    Nothing may be printed meanwhile: rich would take it to stderr, too.
    """
    rich = _rich(sys.stderr)
    if rich is not None:
        with rich.console(sys.stderr).status(rich.text(doing)) as status:
            yield lambda text: status.update(rich.text(f"{doing}: {safe(text)}"))
        return
    if not _is_terminal(sys.stderr):
        yield lambda _: None
        return
    widest = 0

    def tell(text: str) -> None:
        nonlocal widest
        line = f"{doing}: {safe(text)}"
        widest = max(widest, len(line))
        print(f"\r{line.ljust(widest)}", end="", file=sys.stderr, flush=True)

    try:
        yield tell
    finally:
        if widest:
            print(f"\r{' ' * widest}\r", end="", file=sys.stderr, flush=True)


def clear_screen() -> bool:
    """Make room for the next round of a refreshing command; False where there is no terminal to clear."""
    if not _is_terminal(sys.stdout):
        return False
    print("\x1b[H\x1b[2J\x1b[3J", end="")
    return True


class _Rich:
    """The parts of rich that are used. Markup is off everywhere: what is shown is data."""

    def __init__(self) -> None:
        self.table: Any = import_module("rich.table").Table
        self.text: Any = import_module("rich.text").Text
        self._console: Any = import_module("rich.console").Console

    def console(self, stream: TextIO) -> Any:
        return self._console(file=stream, markup=False, highlight=False, emoji=False)


def _rich(stream: TextIO) -> _Rich | None:
    if not _is_terminal(stream):
        return None
    try:
        return _Rich()
    except ImportError:
        return None


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # no stream, or a closed one
        return False
