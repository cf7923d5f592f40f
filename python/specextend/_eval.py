"""`LLM.eval`: the program's `specextend eval` on the same model, as a Python object."""
from __future__ import annotations

import html
import json
import os
import subprocess
import tempfile
from typing import Any, Iterable, Mapping, Sequence, Union

from ._core import Error
from ._program import program

Data = Union[str, "os.PathLike[str]", Sequence[Mapping[str, Any]], None]


class Evaluation:
    """What `specextend eval` found: `runs` has a dict for each run, `html` is the report. Notebooks show it by themselves.

    about: what ran, with which settings. equal: all texts had the bytes of plain decoding. csv: the cells as a table.
    """

    def __init__(self, folder: str, equal: bool) -> None:
        def text(name: str) -> str:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                return file.read()
        lines = [json.loads(line) for line in text("results.jsonl").splitlines()]
        self.about: dict[str, Any] = lines[0]
        self.runs: list[dict[str, Any]] = lines[1:]
        self.html = text("report.html")
        self.csv = text("results.csv")
        self.equal = equal

    def save(self, path: str) -> None:
        """Writes the report, one file that fetches nothing."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.html)

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{html.escape(self.html)}" sandbox style="width:100%;height:640px;border:0"></iframe>'


def lists(flag: str, values: Iterable[Any]) -> list[str]:
    text = ",".join(str(value) for value in values)
    return [flag, text] if text else []


def evaluate(flags: Sequence[str], data: Data, spec: Sequence[str], out: str | os.PathLike[str] | None,
             quiet: bool) -> Evaluation:
    with tempfile.TemporaryDirectory() as scratch:
        folder = os.fspath(out) if out is not None else os.path.join(scratch, "out")
        command = [program(), "eval", *flags, "-o", folder]
        for name in spec:
            command += ["--spec", name]
        if quiet:
            command.append("-q")
        if isinstance(data, (str, os.PathLike)):
            command.append(os.fspath(data))
        elif data is not None:
            path = os.path.join(scratch, "data.jsonl")
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(dict(row)) + "\n" for row in data)
            command.append(path)
        ran = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE if quiet else None, text=True, check=False)
        if ran.returncode not in (0, 1) or not os.path.exists(os.path.join(folder, "report.html")):
            raise Error((ran.stderr or "").strip() or f"specextend eval ended with status {ran.returncode}")
        return Evaluation(folder, ran.returncode == 0)
