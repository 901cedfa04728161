"""The documents that the program prints, as objects with tables."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type

from ._program import ask

if TYPE_CHECKING:
    import pandas

    from ._program import Word

#: Ticks of a ledger in a cycle.
TICKS_PER_CYCLE = 1000

Row = Dict[str, Any]

#: The tables of a report, by the names that `--by` has for them, and the members of the document.
TABLES = {
    "symbol": "symbols",
    "address": "addresses",
    "kind": "kinds",
    "class": "classes",
    "space": "spaces",
    "ring": "rings",
    "level": "levels",
    "region": "regions",
    "task": "tasks",
    "comm": "comms",
    "entry": "entries",
    "exit": "exits",
    "call-site": "call_sites",
}

#: What a saved result says that it is.
SAVED = "results of tollgate diff"


class Interval(NamedTuple):
    """A confidence interval. Differences are parts of the first side: 0.1 is 10 %."""

    low: float
    high: float
    confidence: float


def _frame(rows: Sequence[Row]) -> "pandas.DataFrame":
    try:
        import pandas
    except ImportError as error:
        raise ImportError("frames need pandas: pip install pandas") from error
    return pandas.DataFrame(list(rows))


def _interval(verdict: Mapping[str, Any]) -> Optional[Interval]:
    found = verdict.get("interval")
    return None if found is None else Interval(found["low"], found["high"], found["confidence"])


def _cycles(ticks: float) -> float:
    return ticks / TICKS_PER_CYCLE


# Times of one entry to the kernel or one VM exit, which the program prints in ticks.
TIMES = ("mean", "median", "p99", "max")
# Parts of these times. The program prints their means, and the sums over all entries or exits under `sums`, in ticks.
PARTS = ("enter", "mitigation", "handler", "leave", "processor", "software")


def _in_cycles(line: Mapping[str, Any]) -> Row:
    """A line of a report, with its times in cycles beside the sum in ticks. Parts are means, as in a comparison.

    They are calculated from the sums. In documents of earlier versions, the parts themselves are the sums.
    """
    if "ticks" not in line:
        return dict(line)
    times = {name: _cycles(line[name]) for name in TIMES if name in line}
    sums = line.get("sums", line)
    parts = {name: _cycles(sums[name]) / max(line["count"], 1) for name in PARTS if name in sums}
    return {**line, **times, **parts, "cycles": _cycles(line["ticks"])}


def _runs(name: str, side: Mapping[str, Any]) -> Iterator[Row]:
    for run in side["runs"]:
        yield {"side": name, **run}


def _changes(changes: Sequence[Mapping[str, Any]]) -> List[Row]:
    def row(change: Mapping[str, Any]) -> Row:
        before, after = change["before"], change["after"]
        return {
            "name": change["name"],
            "cycles_before": _cycles(before["ticks"]),
            "cycles_after": _cycles(after["ticks"]),
            "change": _cycles(after["ticks"] - before["ticks"]),
            "count_before": before["count"],
            "count_after": after["count"],
        }

    return [row(change) for change in changes]


def _entries(changes: Sequence[Mapping[str, Any]]) -> List[Row]:
    def row(change: Mapping[str, Any]) -> Row:
        sides = {"before": change["a"], "after": change["b"]}
        figures = {f"{what}_{side}": value for side, of in sides.items() for what, value in of.items()}
        return {"name": change["name"], "gate": change["gate"], **figures}

    return [row(change) for change in changes]


class Document:
    """A document of the program. `data` is all of it."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = dict(data)

    @property
    def warnings(self) -> List[str]:
        """Reasons for which the result may not be the one that was meant."""
        return list(self.data.get("warnings", []))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._describe()}>"

    def _describe(self) -> str:
        return str(self.data.get("command", ""))


class Comparison(Document):
    """A comparison of two sides."""

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        return str(self.data["sentence"])

    @property
    def verdict(self) -> Mapping[str, Any]:
        """The answer for programs."""
        verdict: Mapping[str, Any] = self.data["verdict"]
        return verdict

    @property
    def answer(self) -> str:
        """`more`, `less`, `same`, `within`, `undecided`, or `one-layout` for a difference without an interval."""
        return str(self.verdict["answer"])

    @property
    def relative(self) -> float:
        """The difference as a part of the first side."""
        return float(self.verdict["relative"])

    @property
    def interval(self) -> Optional[Interval]:
        """The interval of the difference; None for one layout."""
        return _interval(self.verdict)

    @property
    def exceeded(self) -> bool:
        """True if --fail-above is exceeded."""
        return self.verdict.get("held") == "exceeded"

    def causes(self) -> "pandas.DataFrame":
        """The changes by cause."""
        return _frame(_changes(self.data["causes"]))

    def functions(self) -> "pandas.DataFrame":
        """The changes by function."""
        return _frame(_changes(self.data["functions"]))

    def entries(self) -> "pandas.DataFrame":
        """The changes by entry to the kernel, with everything below.

        Times are in cycles. `count`, `total` and `nested` are those of a run; the others are of one entry: `mean`, `median`, `p99`, and the means
        of the parts `enter`, `mitigation`, `handler` and `leave`.
        """
        return _frame(_entries(self.data["entries"]))

    def _describe(self) -> str:
        return self.sentence


class Diff(Comparison):
    """What `tollgate diff` prints for two sides."""

    def runs(self) -> "pandas.DataFrame":
        """A row for each layout of each side."""
        return _frame([row for name in ("a", "b") for row in _runs(name.upper(), self.data[name])])


class Several(Document):
    """What `tollgate diff` prints for sides with names."""

    @property
    def sides(self) -> List[str]:
        """The names of the sides."""
        return [side["name"] for side in self.data["sides"]]

    @property
    def reference(self) -> str:
        """The name of the side with which the others are compared."""
        return str(self.data["reference"])

    def against(self, name: str) -> Comparison:
        """The comparison of a side with the reference."""
        for side in self.data["sides"]:
            if side["name"] == name:
                if side["against"] is None:
                    raise KeyError(f"{name} is the reference")
                return Comparison(side["against"])
        raise KeyError(f"there is no side {name}; there are {', '.join(self.sides)}")

    def summary(self) -> "pandas.DataFrame":
        """A row for each side."""

        def row(side: Mapping[str, Any]) -> Row:
            against = side["against"]
            verdict: Mapping[str, Any] = against["verdict"] if against else {}
            interval = _interval(verdict)
            return {
                "side": side["name"],
                **{f"parameter_{name}": value for name, value in side["parameters"].items()},
                **{what: side["cycles"][what] for what in ("runs", "mean", "deviation", "median", "least", "most")},
                "difference": verdict.get("relative"),
                "low": interval.low if interval else None,
                "high": interval.high if interval else None,
                "answer": verdict.get("answer", "reference"),
            }

        return _frame([row(side) for side in self.data["sides"]])

    def runs(self) -> "pandas.DataFrame":
        """A row for each layout of each side."""
        return _frame([row for side in self.data["sides"] for row in _runs(side["name"], side)])


class Series(Document):
    """What `tollgate series` prints."""

    @property
    def summary(self) -> str:
        """The outcome in a sentence."""
        return str(self.data["summary"])

    @property
    def found(self) -> List[str]:
        """The names of the commits that --bisect has found: one, or all that it may be."""
        bisection = self.data["bisection"]
        return list(bisection["found"]) if bisection else []

    def change(self, name: str) -> Optional[Comparison]:
        """The comparison of a commit with the measured one before it; None if there is none."""
        for commit in self.data["commits"]:
            if name in (commit["name"], commit["commit"]):
                previous = commit["previous"]
                return Comparison(previous) if previous else None
        raise KeyError(f"there is no commit {name}")

    def commits(self) -> "pandas.DataFrame":
        """A row for each commit."""

        def row(commit: Mapping[str, Any]) -> Row:
            side = commit["side"]
            found: Row = {what: commit[what] for what in ("commit", "name", "subject", "status", "mark")}
            found["median"] = side["cycles"]["median"] if side else None
            for what, verdict in (("change", (commit["previous"] or {}).get("verdict")), ("from_first", commit["first"])):
                interval = _interval(verdict) if verdict else None
                found[what] = verdict["relative"] if verdict else None
                found[f"{what}_low"] = interval.low if interval else None
                found[f"{what}_high"] = interval.high if interval else None
                found[f"{what}_answer"] = verdict["answer"] if verdict else None
            found["why"] = commit["broken"]["why"] if commit["broken"] else None
            return found

        return _frame([row(commit) for commit in self.data["commits"]])

    def runs(self) -> "pandas.DataFrame":
        """A row for each layout of each commit."""
        measured = [commit for commit in self.data["commits"] if commit["side"]]
        return _frame([row for commit in measured for row in _runs(commit["name"], commit["side"])])

    def _describe(self) -> str:
        return self.summary


class Stat(Document):
    """What `tollgate stat` prints."""

    def value(self, name: str) -> Optional[float]:
        """The value of a counter; None if the model of time does not count it."""
        for counter in [*self.data["counters"], *self.data["top_down"]]:
            if counter["name"] == name:
                value: Optional[float] = counter["value"]
                return value
        raise KeyError(f"there is no counter {name}")

    def counters(self) -> "pandas.DataFrame":
        """A row for each counter."""

        def row(counter: Mapping[str, Any]) -> Row:
            metric = counter["metric"] or {}
            return {
                "name": counter["name"],
                "value": counter["value"],
                "deviation": counter["deviation"],
                "metric": metric.get("value"),
                "unit": metric.get("unit"),
            }

        return _frame([row(counter) for counter in [*self.data["counters"], *self.data["top_down"]]])


class Report(Document):
    """What `tollgate report` prints of a ledger."""

    @property
    def total(self) -> Mapping[str, Any]:
        """The sums of the selected part."""
        total: Mapping[str, Any] = self.data["total"]
        return total

    @property
    def run(self) -> Mapping[str, Any]:
        """The inputs of the run, its processor, and its frequency."""
        run: Mapping[str, Any] = self.data["run"]
        return run

    def lines(self, by: str = "symbol") -> List[Row]:
        """The lines of a table, with their names. `ticks` is the time of a line in ticks, and `cycles` the same time in cycles.

        Entries and VM exits also have the times of one of them, in cycles: `mean`, `median`, `p99`, `max`, and the means of their parts, such as
        `enter` and `leave`. `Comparison.entries` has the same.
        """
        if by not in TABLES:
            raise KeyError(f"there is no table {by}; there are {', '.join(TABLES)}")
        lines = self.data.get(TABLES[by])
        if lines is None:
            raise KeyError(f"the document has no table {by}: read the ledger with by={by!r}, or without by")
        named = lines if isinstance(lines, list) else [{"name": name, **line} for name, line in lines.items()]
        return [_in_cycles(line) for line in named]

    def frame(self, by: str = "symbol") -> "pandas.DataFrame":
        """The lines of a table. What a line has below it, such as its causes, is left out."""
        flat = [{name: value for name, value in line.items() if not isinstance(value, (dict, list))} for line in self.lines(by)]
        return _frame(flat)

    def _describe(self) -> str:
        cycles = _cycles(self.total["ticks"])
        return f"{cycles:,.0f} cycles on {self.run['profile']}"


class Lab(Document):
    """What `tollgate lab run` prints."""

    @property
    def experiments(self) -> List[str]:
        """The names of the experiments."""
        return [experiment["name"] for experiment in self.data["experiments"]]

    def cells(self) -> "pandas.DataFrame":
        """A row for each cell, with our value and the published one."""

        def row(experiment: Mapping[str, Any], cell: Mapping[str, Any]) -> Row:
            measured = cell.get("measured") or {}
            return {
                "experiment": experiment["name"],
                "row": cell["row"],
                "column": cell["column"],
                "value": measured.get("value"),
                "published": measured.get("published"),
                "unit": measured.get("unit"),
                "failure": cell.get("failure"),
            }

        return _frame([row(experiment, cell) for experiment in self.data["experiments"] for cell in experiment["cells"]])

    def _describe(self) -> str:
        return ", ".join(self.experiments)


#: The members of each document; the first one tells it from the others.
KINDS: Sequence[Tuple[Sequence[str], Type[Document]]] = (
    (("experiments",), Lab),
    (("commits", "summary", "bisection"), Series),
    (("sides", "reference"), Several),
    (("verdict", "sentence", "causes", "functions", "entries", "a", "b"), Diff),
    (("counters", "top_down"), Stat),
    (("run", "total"), Report),
)


def _is_saved(data: Any) -> bool:
    return isinstance(data, Mapping) and data.get("document") == SAVED


def parse(data: Mapping[str, Any]) -> Document:
    """Returns the object for a document, by what it is."""
    if _is_saved(data):
        raise ValueError("these are runs that tollgate diff --save has written, without a comparison: tollgate.read compares them")
    for members, kind in KINDS:
        if isinstance(data, Mapping) and members[0] in data:
            lacking = [member for member in members if member not in data]
            if lacking:
                raise ValueError(f"the document has {members[0]!r}, but no {lacking[0]!r}: it is damaged, or of another version")
            return kind(data)
    raise ValueError("this is no document that tollgate prints with --json")


def read(path: "Word") -> Document:
    """Reads a file with a document that the program has printed with --json, or a result that tollgate diff --save has written.

    The program compares the sides of a saved result: a comparison of A and B is a `Diff`, and one of sides with names is a `Several`.
    """
    with open(path, "rb") as file:
        content = file.read()
    try:
        data = json.loads(content.decode("utf-8"))
        if not _is_saved(data):
            return parse(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from error
    # A file whose name is - would be standard input.
    return parse(ask(["diff", "--json", "--load", os.path.abspath(path)]))
