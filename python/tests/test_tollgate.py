"""Tests of the package: documents and frames by examples, and the program, if it is built.

Run by `make test`, or by `python3 -m unittest discover -s python/tests`.
"""

from __future__ import annotations

import copy
import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python/src"))

import tollgate  # noqa: E402

try:
    import pandas  # noqa: F401
except ImportError:
    pandas = None

needs_pandas = unittest.skipIf(pandas is None, "pandas is not installed")

INTERVAL = {"low": 0.02, "high": 0.05, "confidence": 0.95}
VERDICT = {"answer": "more", "relative": 0.03, "interval": INTERVAL, "held": None}
CAUSE = {"name": "IRET", "before": {"count": 10, "ticks": 1000}, "after": {"count": 12, "ticks": 3500}}
FIGURES = {"count": 2.0, "total": 400.0, "mean": 200.0}
ENTRY = {"name": "read", "gate": "system-call", "a": FIGURES, "b": {**FIGURES, "mean": 300.0}}
SIDE = {
    "title": "cloud",
    "cycles": {"runs": 2, "mean": 1.5, "deviation": 0.5, "median": 1.5, "least": 1.0, "most": 2.0},
    "runs": [{"seed": 1, "cycles": 1.0, "instructions": 7}, {"seed": 2, "cycles": 2.0, "instructions": 8}],
}
AGAINST = {"sentence": "B costs 3% more.", "verdict": VERDICT, "causes": [CAUSE], "functions": [], "entries": [ENTRY]}
DIFF = {**AGAINST, "format": 3, "warnings": ["A: a warning"], "command": "true", "a": SIDE, "b": SIDE}
SEVERAL = {
    "format": 1,
    "command": "true {n}",
    "reference": "base",
    "sides": [
        {"name": "base", "parameters": {"n": "1"}, **SIDE, "against": None},
        {"name": "off", "parameters": {"n": "2"}, **SIDE, "against": AGAINST},
    ],
}
COMMIT = {"commit": "a" * 40, "name": "aaaaaaa", "subject": "Linux", "mark": None, "broken": None, "same_as": None}
SERIES = {
    "format": 1,
    "summary": "3 commits.",
    "bisection": {"found": ["ccccccc"], "above": 0.02, "kernels": 3, "sentence": "ccccccc is the first."},
    "commits": [
        {**COMMIT, "status": "measured", "side": SIDE, "previous": None, "first": None},
        {**COMMIT, "name": "bbbbbbb", "status": "not-built", "side": None, "previous": None, "first": None,
         "broken": {"why": "make ended with status 2", "log": []}},
        {**COMMIT, "name": "ccccccc", "status": "measured", "side": SIDE, "previous": {"name": "aaaaaaa", **AGAINST},
         "first": VERDICT},
    ],
}
COUNTER = {"name": "instructions", "value": 7.0, "deviation": None, "runs": [7.0], "metric": {"value": 0.5, "unit": "insn per cycle"}}
STAT = {"format": 1, "command": "true", "counters": [COUNTER], "top_down": []}
REPORT = {
    "run": {"profile": "skx", "tsc_hz": 2100000000},
    "total": {"ticks": 5000},
    "symbols": [{"name": "f", "ticks": 3000, "calls": 1, "causes": {}}, {"name": "g", "ticks": 2000, "calls": 2, "causes": {}}],
    "classes": {"alu": {"count": 3, "ticks": 4000}},
}
LAB = {
    "format": 1,
    "experiments": [{"name": "e", "cells": [
        {"row": "r", "column": "c", "measured": {"value": 1.5, "published": 2.0, "unit": "s"}, "failure": None},
        {"row": "r", "column": "d", "failure": "it timed out"},
    ]}],
}


class Documents(unittest.TestCase):
    def test_a_document_is_known_by_what_it_has(self) -> None:
        kinds = [(DIFF, "Diff"), (SEVERAL, "Several"), (SERIES, "Series"), (STAT, "Stat"), (REPORT, "Report"), (LAB, "Lab")]
        for document, kind in kinds:
            self.assertEqual(type(tollgate.parse(document)).__name__, kind)
        for wrong in ({}, {"a": 1}, [], None):
            self.assertRaises(ValueError, tollgate.parse, wrong)

    def test_a_diff_has_its_answer(self) -> None:
        diff = tollgate.Diff(DIFF)
        self.assertEqual((diff.answer, diff.relative, diff.interval), ("more", 0.03, (0.02, 0.05, 0.95)))
        self.assertEqual((diff.warnings, diff.exceeded, repr(diff)), (["A: a warning"], False, "<Diff: B costs 3% more.>"))
        one = copy.deepcopy(DIFF)
        one["verdict"]["interval"] = None
        self.assertIsNone(tollgate.Diff(one).interval)

    def test_sides_are_found_by_their_names(self) -> None:
        several = tollgate.Several(SEVERAL)
        self.assertEqual((several.sides, several.reference), (["base", "off"], "base"))
        self.assertEqual(several.against("off").answer, "more")
        self.assertRaisesRegex(KeyError, "off2.*base, off", several.against, "off2")
        self.assertRaisesRegex(KeyError, "reference", several.against, "base")

    def test_a_series_has_its_commits(self) -> None:
        series = tollgate.Series(SERIES)
        self.assertEqual(series.found, ["ccccccc"])
        change = series.change("ccccccc")
        assert change is not None
        self.assertEqual(change.sentence, "B costs 3% more.")
        self.assertIsNone(series.change("bbbbbbb"))
        self.assertRaises(KeyError, series.change, "ddddddd")

    def test_lines_of_a_report_have_cycles(self) -> None:
        report = tollgate.Report(REPORT)
        self.assertEqual([(line["name"], line["cycles"]) for line in report.lines()], [("f", 3.0), ("g", 2.0)])
        self.assertEqual(report.lines("class"), [{"name": "alu", "count": 3, "ticks": 4000, "cycles": 4.0}])
        self.assertRaisesRegex(KeyError, "by='kind'", report.lines, "kind")
        self.assertRaisesRegex(KeyError, "symbol, address", report.lines, "symbols")
        self.assertEqual(repr(report), "<Report: 5 cycles on skx>")
        entry = {"name": "#PF", "count": 2, "ticks": 6000, "mean": 3000, "p99": 4500, "enter": 500}
        [line] = tollgate.Report({**REPORT, "entries": [entry]}).lines("entry")
        self.assertEqual((line["ticks"], line["cycles"], line["mean"], line["p99"]), (6000, 6.0, 3.0, 4.5))

    def test_parts_of_entries_are_means(self) -> None:
        # 500 ticks in two entries: a comparison of ledgers calls that 0.25 cycles too.
        sums = {"enter": 500, "mitigation": 0, "handler": 5000, "leave": 500}
        means = {name: ticks // 2 for name, ticks in sums.items()}
        entry = {"name": "#PF", "count": 2, "ticks": 6000, "mean": 3000, "median": 2000, "p99": 4500}
        # An earlier version printed the sums alone.
        for parts in ({**means, "sums": sums}, sums):
            [line] = tollgate.Report({**REPORT, "entries": [{**entry, **parts}]}).lines("entry")
            self.assertEqual([line[name] for name in sums], [0.25, 0.0, 2.5, 0.25])
            self.assertEqual(sum(line[name] for name in sums), line["mean"])
        leaving = {"name": "CPUID", "count": 4, "ticks": 8000, "mean": 2000, "processor": 1500, "software": 500, "mitigation": 0}
        leaving["sums"] = {"processor": 6000, "software": 2000, "mitigation": 0}
        [line] = tollgate.Report({**REPORT, "exits": [leaving]}).lines("exit")
        self.assertEqual((line["processor"], line["software"], line["mean"]), (1.5, 0.5, 2.0))
        self.assertEqual(line["processor"] + line["software"], line["mean"])

    def test_counters_have_values(self) -> None:
        self.assertEqual(tollgate.Stat(STAT).value("instructions"), 7.0)
        self.assertRaises(KeyError, tollgate.Stat(STAT).value, "cycle")

    @unittest.skipIf(pandas is not None, "pandas is installed")
    def test_frames_say_that_they_need_pandas(self) -> None:
        self.assertRaisesRegex(ImportError, "pip install pandas", tollgate.Diff(DIFF).causes)


@needs_pandas
class Frames(unittest.TestCase):
    def test_changes_are_rows(self) -> None:
        causes = tollgate.Diff(DIFF).causes()
        self.assertEqual(causes.loc[0, ["change", "cycles_before", "count_after"]].tolist(), [2.5, 1.0, 12])
        entries = tollgate.Diff(DIFF).entries()
        self.assertEqual(entries.loc[0, ["name", "mean_before", "mean_after"]].tolist(), ["read", 200.0, 300.0])
        self.assertEqual(len(tollgate.Diff(DIFF).functions()), 0)
        self.assertEqual(tollgate.Diff(DIFF).runs()["side"].tolist(), ["A", "A", "B", "B"])

    def test_sides_and_commits_are_rows(self) -> None:
        summary = tollgate.Several(SEVERAL).summary()
        self.assertEqual(summary["answer"].tolist(), ["reference", "more"])
        self.assertEqual(summary["parameter_n"].tolist(), ["1", "2"])
        self.assertEqual(len(tollgate.Several(SEVERAL).runs()), 4)
        commits = tollgate.Series(SERIES).commits()
        self.assertEqual(commits["status"].tolist(), ["measured", "not-built", "measured"])
        self.assertEqual((commits["change"][2], commits["from_first_high"][2]), (0.03, 0.05))
        self.assertEqual(commits["why"][1], "make ended with status 2")
        self.assertEqual(tollgate.Series(SERIES).runs()["side"].unique().tolist(), ["aaaaaaa", "ccccccc"])

    def test_lines_counters_and_cells_are_rows(self) -> None:
        self.assertEqual(tollgate.Report(REPORT).frame().columns.tolist(), ["name", "ticks", "calls", "cycles"])
        self.assertEqual(tollgate.Stat(STAT).counters()["unit"].tolist(), ["insn per cycle"])
        cells = tollgate.Lab(LAB).cells()
        self.assertEqual((cells["value"][0], cells["failure"][1]), (1.5, "it timed out"))


class Program(unittest.TestCase):
    def setUp(self) -> None:
        self.place = tempfile.TemporaryDirectory()
        self.addCleanup(self.place.cleanup)
        self.path = pathlib.Path(self.place.name)

    def fake(self, script: str) -> mock._patch_dict:
        """A program that is a script of the shell."""
        path = self.path / "tollgate"
        path.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {self.path}/given\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return mock.patch.dict(os.environ, {"TOLLGATE": str(path)})

    def given(self) -> "list[str]":
        return (self.path / "given").read_text().splitlines()

    def document(self, data: object) -> str:
        (self.path / "document").write_text(json.dumps(data))
        return f"cat {self.path}/document"

    def test_options_and_commands_are_passed_on(self) -> None:
        with self.fake(self.document(DIFF)):
            diff = tollgate.diff("--kernel", "cloud", command=["sh", "-c", "echo --json"])
        self.assertIsInstance(diff, tollgate.Diff)
        self.assertEqual(self.given(), ["diff", "--json", "--kernel", "cloud", "--", "sh", "-c", "echo --json"])
        with self.fake(self.document(SEVERAL) + "; exit 1"):
            several = tollgate.diff("--load", self.path / "a.json")
        self.assertEqual(self.given()[-1], str(self.path / "a.json"))
        self.assertIsInstance(several, tollgate.Several, "status 1 is an answer")
        with self.fake(self.document(DIFF)):
            saved = tollgate.diff("--load", self.path / "a.json")
        assert isinstance(saved, tollgate.Diff)
        self.assertEqual(saved.answer, "more", "one saved result of A and B is a diff")
        with self.fake(self.document(REPORT)):
            tollgate.report("-x.ledger", by="symbol", level=0)
        self.assertEqual(self.given(), ["report", "--json", "--by=symbol", "--level=0", "--", "-x.ledger"])
        with self.fake(self.document(LAB) + "; exit 1"):
            self.assertEqual(tollgate.lab("pv-cr3").experiments, ["e"])
        with self.fake(self.document(STAT)):
            self.assertEqual(tollgate.stat(command=["true"]).value("instructions"), 7.0)
        with self.fake(self.document(SERIES)):
            self.assertEqual(tollgate.series("--tree", "x", command=["true"]).found, ["ccccccc"])

    def test_a_failure_says_what_the_program_said(self) -> None:
        with self.fake("echo 'tollgate: error: no such thing' >&2; exit 126"):
            with self.assertRaises(tollgate.Failed) as failed:
                tollgate.stat(command=["x"])
        self.assertEqual((failed.exception.status, failed.exception.said), (126, "tollgate: error: no such thing\n"))
        self.assertIn("no such thing", str(failed.exception))
        with self.fake("exit 1"):
            self.assertRaises(tollgate.Failed, tollgate.diff, command=["x"])
        with mock.patch.dict(os.environ, {"TOLLGATE": str(self.path / "nowhere")}):
            self.assertRaisesRegex(FileNotFoundError, "TOLLGATE names .*nowhere", tollgate.program)

    def test_files_are_read(self) -> None:
        path = self.path / "d.json"
        path.write_text(json.dumps(DIFF))
        self.assertIsInstance(tollgate.read(path), tollgate.Diff)

    def test_a_saved_result_is_compared_by_the_program(self) -> None:
        path = self.path / "ab.json"
        saved = {"document": "results of tollgate diff", "format": 1, "sides": [{"name": "A"}, {"name": "B"}]}
        path.write_text(json.dumps(saved))
        with self.fake(self.document(DIFF)):
            diff = tollgate.read(path)
        self.assertEqual(self.given(), ["diff", "--json", "--load", str(path)])
        assert isinstance(diff, tollgate.Diff)
        self.assertEqual(diff.answer, "more")
        with self.fake(self.document(SEVERAL)):
            self.assertIsInstance(tollgate.read(path), tollgate.Several)
        with self.fake("echo 'tollgate: error: ab.json has one side' >&2; exit 2"):
            self.assertRaisesRegex(tollgate.Failed, "ab.json has one side", tollgate.read, path)
        self.assertRaisesRegex(ValueError, "tollgate.read compares them", tollgate.parse, saved)

    def test_a_damaged_file_is_named(self) -> None:
        path = self.path / "cut.json"
        whole = json.dumps(DIFF).encode()
        several = {**SEVERAL}
        del several["reference"]
        for content, why in (
            (whole[:-9], "line 1"),
            (b"", "line 1"),
            (b"\xff\xfe", "utf-8"),
            (b"[" * 200_000, "recursion|nested"),
            (b"[]", "no document that tollgate prints"),
            (json.dumps(several).encode(), "has 'sides', but no 'reference'"),
        ):
            path.write_bytes(content)
            self.assertRaisesRegex(ValueError, f"cut.json: .*({why})", tollgate.read, path)
        self.assertRaises(FileNotFoundError, tollgate.read, self.path / "none.json")

    def test_the_real_program_writes_what_is_read(self) -> None:
        program = pathlib.Path(os.environ.get("TOLLGATE", ROOT / "target/release/tollgate"))
        guest = ROOT / "target/guests/syscall.elf"
        if not (program.is_file() and guest.is_file()):
            self.skipTest("make build and make guests make what is tested")
        ledger = self.path / "a.ledger"
        with mock.patch.dict(os.environ, {"TOLLGATE": str(program)}):
            # The status is the guest's own.
            done = subprocess.run([program, "run", "--kernel", guest, "--ledger", ledger], capture_output=True)
            self.assertTrue(ledger.is_file(), done.stderr)
            report = tollgate.report(ledger)
            kinds = tollgate.report(ledger, by="kind", top=3)
        self.assertEqual(report.run["profile"], "skx")
        lines = report.lines("kind")
        self.assertTrue(any(line["name"] == "SYSCALL" for line in lines), lines)
        self.assertEqual(len(kinds.lines("kind")), 3)
        self.assertAlmostEqual(sum(line["ticks"] for line in report.lines("symbol")) / report.total["ticks"], 1, delta=0.01)


if __name__ == "__main__":
    unittest.main()
