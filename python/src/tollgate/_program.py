"""The program: where it is, and how it is started."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any, Iterable, Optional, Sequence, Union

#: The variable that names the program.
VARIABLE = "TOLLGATE"

Word = Union[str, "os.PathLike[str]"]


class Failed(Exception):
    """The program ended with a status that is no answer. Its words are those on standard error."""

    def __init__(self, command: Sequence[str], status: int, said: str) -> None:
        self.command = list(command)
        self.status = status
        self.said = said
        super().__init__(f"{' '.join(command[:2])} ended with status {status}: {said.strip() or 'without a word'}")


def program() -> str:
    """Returns the path of the program: the one that TOLLGATE names, or the one in PATH."""
    named = os.environ.get(VARIABLE)
    found = shutil.which(named or "tollgate")
    if found is None:
        where = f"{VARIABLE} names {named}, which can't be executed" if named else "there is no tollgate in PATH"
        raise FileNotFoundError(f"{where}: set {VARIABLE} to the program that `make build` makes")
    return found


def ask(words: Iterable[Word], answers: Sequence[int] = (0,), cwd: Optional[Word] = None) -> Any:
    """Starts the program, and returns the JSON document that it prints. Other statuses than `answers` are failures."""
    command = [program(), *(os.fspath(word) for word in words)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd)
    said = done.stderr.decode(errors="replace")
    if done.returncode not in answers or not done.stdout:
        raise Failed(command, done.returncode, said)
    return json.loads(done.stdout)
