"""Results of Tollgate as Python objects and pandas frames.

The program prints its results as JSON; this package starts it, and turns the documents into tables.
"""

from ._documents import Diff, Document, Interval, Lab, Report, Series, Several, Stat, parse, read
from ._program import Failed, program
from ._commands import diff, lab, report, series, stat

__all__ = [
    "Diff",
    "Document",
    "Failed",
    "Interval",
    "Lab",
    "Report",
    "Series",
    "Several",
    "Stat",
    "diff",
    "lab",
    "parse",
    "program",
    "read",
    "report",
    "series",
    "stat",
]
__version__ = "0.1.0"
