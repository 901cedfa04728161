"""The commands of the program that print results."""

from __future__ import annotations

from typing import List, Optional, Sequence, Union

from ._documents import Diff, Document, Lab, Report, Series, Several, Stat, parse
from ._program import Word, ask


def _measured(command: str, options: Sequence[Word], words: Sequence[Word], answers: Sequence[int]) -> Document:
    tail: List[Word] = ["--", *words] if words else []
    return parse(ask([command, "--json", *options, *tail], answers))


def diff(*options: Word, command: Sequence[Word] = ()) -> Union[Diff, Several]:
    """Compares the cost of a command: `tollgate diff OPTIONS -- COMMAND`. With --load there is no command."""
    document = _measured("diff", options, command, (0, 1))
    assert isinstance(document, (Diff, Several))
    return document


def series(*options: Word, command: Sequence[Word]) -> Series:
    """Measures a command over a range of commits: `tollgate series OPTIONS -- COMMAND`."""
    document = _measured("series", options, command, (0, 1))
    assert isinstance(document, Series)
    return document


def stat(*options: Word, command: Sequence[Word]) -> Stat:
    """Counts what a command does: `tollgate stat OPTIONS -- COMMAND`."""
    document = _measured("stat", options, command, (0,))
    assert isinstance(document, Stat)
    return document


def lab(*options: Word) -> Lab:
    """Runs experiments: `tollgate lab run OPTIONS`. A cell that fails is a cell without a value."""
    document = parse(ask(["lab", "run", "--json", *options], (0, 1)))
    assert isinstance(document, Lab)
    return document


def report(
    ledger: Word,
    *options: Word,
    by: Optional[str] = None,
    region: Optional[str] = None,
    task: Optional[str] = None,
    level: Optional[int] = None,
    top: Optional[int] = None,
) -> Report:
    """Reads a ledger: `tollgate report LEDGER`. Without `by`, all tables are read."""
    words: List[Word] = ["report", "--json", *options]
    given = {"by": by, "region": region, "task": task, "level": level, "top": top}
    words += [f"--{name}={value}" for name, value in given.items() if value is not None]
    document = parse(ask([*words, "--", ledger]))
    assert isinstance(document, Report)
    return document
