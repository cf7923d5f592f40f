#!/usr/bin/env python3
"""`specextend eval` from outside: a small grid on a tiny model, killed in the middle and resumed; JSON, CSV and page have
every cell; errors name the culprit. Arguments: the program, the maker of tiny models."""
import csv
import html.parser
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM, MAKE_TINY = map(os.path.abspath, sys.argv[1:3])
METHODS = ["off", "suffix", "ngram:nodes=3", "sd"]
PROMPTS = {"fox": "a fox, a dog, " * 30, "wolf": "one wolf, two wolves, " * 30}
CELLS = {(m, p, n, t, a, 1) for m in METHODS for p in PROMPTS for n in (0, 40) for t in (0.0, 0.9) for a in (6, 12)}
VOID = {"meta", "path", "polyline", "circle", "rect", "br"}


class Page(html.parser.HTMLParser):
    """The rows of tables by id, and that every element is closed."""

    def __init__(self, text):
        super().__init__()
        self.stack, self.tags, self.rows = [], set(), {}
        self.feed(text)
        assert not self.stack, self.stack

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag not in VOID:
            self.stack.append((tag, dict(attrs)))
        if tag == "tr" and (table := self.table()):
            self.rows.setdefault(table, []).append([])
        if tag in ("td", "th") and (table := self.table()) and self.rows.get(table):
            self.rows[table][-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            opened, _ = self.stack.pop()
            assert opened == tag, (opened, tag)

    def handle_data(self, data):
        if (table := self.table()) and self.stack[-1][0] in ("td", "th", "b") and self.rows.get(table):
            self.rows[table][-1][-1] += data

    def table(self):
        return next((a.get("id") for t, a in reversed(self.stack) if t == "table"), None)


def run(*args):
    return subprocess.run([PROGRAM, "eval", *args], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)


class Eval(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.home = tempfile.TemporaryDirectory()
        os.chdir(cls.home.name)
        subprocess.run([MAKE_TINY, "tiny.gguf"], check=True)
        lines = [{"id": "fox", "prompt": PROMPTS["fox"], "reference": "a fox", "category": "animals"},
                 {"id": "wolf", "text": PROMPTS["wolf"], "instruction": "Say it:"}]
        pathlib.Path("data.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")

    @classmethod
    def tearDownClass(cls):
        os.chdir("/")
        cls.home.cleanup()

    def grid(self, out, repetitions, methods=METHODS[1:]):
        specs = [word for method in methods for word in ("--spec", method)]
        return ["data.jsonl", "-m", "tiny.gguf", "-md", "tiny.gguf", "-o", out, *specs, "--length", "0,40", "--temp", "0,0.9", "-n", "6,12",
                "--repetitions", str(repetitions), "--ignore-eos"]

    def results(self, out):
        lines = [json.loads(line) for line in (pathlib.Path(out) / "results.jsonl").read_text().splitlines()]
        self.assertIn("eval", lines[0])
        return lines[1:]

    def check_whole(self, out, repetitions):
        runs = self.results(out)
        key = lambda r: (r["method"], r["prompt"], r["length"], r["temperature"], r["max_tokens"], r["batch"])
        self.assertEqual(len(runs), len(CELLS) * repetitions)
        self.assertEqual({(*key(r), r["repetition"]) for r in runs}, {(*c, i) for c in CELLS for i in range(repetitions)})
        answers = {}
        for r in runs:
            self.assertTrue(r["equal"] and r["promised"], r)
            self.assertEqual(answers.setdefault(key(r)[1:], r["answer"]), r["answer"])
            self.assertEqual(r["tokens"], r["max_tokens"])
            if r["length"]:
                self.assertLessEqual(abs(r["prompt_tokens"] - r["length"]), 4)
            self.assertLessEqual(r["first_token_ms"], r["whole_ms"])
            self.assertAlmostEqual(r["tokens_per_second"], 1e3 * r["tokens"] / r["whole_ms"])
            self.assertGreaterEqual(r["tokens_per_pass"], 1)
            self.assertEqual("rouge_l" in r, r["prompt"] == "fox")
        with open(pathlib.Path(out) / "results.csv", newline="") as file:
            table = list(csv.DictReader(file))
        self.assertEqual(len(table), len(runs))
        for row, r in zip(table, runs):
            self.assertEqual((row["method"], row["prompt"], int(row["tokens"])), (r["method"], r["prompt"], r["tokens"]))
        page = Page((pathlib.Path(out) / "report.html").read_text())
        self.assertNotIn("script", page.tags)
        self.assertIn("svg", page.tags)
        shown = {(row[0], row[1], float(row[5]), int(row[6])) for row in page.rows["cells"][1:]}
        self.assertEqual(shown, {(c[0], c[1], c[3], c[4]) for c in CELLS})
        self.assertEqual(len(page.rows["cells"]) - 1, len(CELLS))
        self.assertEqual(len(page.rows["rows"]) - 1, len(CELLS) // 2)

    def test_killed_and_resumed(self):
        going = subprocess.Popen([PROGRAM, "eval", *self.grid("killed", 6)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        path = pathlib.Path("killed/results.jsonl")
        for _ in range(30000):
            if going.poll() is not None or (path.exists() and path.read_bytes().count(b"\n") > 20):
                break
            time.sleep(0.002)
        going.send_signal(signal.SIGKILL)
        going.wait()
        with open(path, "ab") as file:
            file.write(b'{"method": "suffix", "pro')
        before = path.read_bytes().count(b"\n") - 1
        self.assertGreater(before, 10)
        self.assertLess(before, 6 * len(CELLS), "it ended before it was killed")
        done = run(*self.grid("killed", 6))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"{before} runs were there already", done.stderr)
        self.check_whole("killed", 6)
        again = run(*self.grid("killed", 6))  # nothing is left to do
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(again.stdout, done.stdout)
        same = run("diff", "killed", "killed")
        self.assertEqual((same.returncode, same.stderr), (0, ""))
        self.assertIn("0 slower, 0 faster", same.stdout)

    def test_what_got_slower_is_said(self):
        self.assertEqual(run("-m", "tiny.gguf", "-o", "now", "-n", "8", "--limit", "2", "--repetitions", "3", "-q").returncode, 0)
        lines = pathlib.Path("now/results.jsonl").read_text().splitlines()
        os.makedirs("slow")
        slower = [lines[0]]
        for line in lines[1:]:
            r = json.loads(line)
            if r["method"] == "suffix":
                r["whole_ms"] *= 50
            slower.append(json.dumps(r))
        pathlib.Path("slow/results.jsonl").write_text("\n".join(slower) + "\n")
        told = run("diff", "now", "slow")
        self.assertEqual(told.returncode, 1)
        self.assertIn("2 slower, 0 faster, 2 within noise", told.stdout)
        self.assertEqual(run("diff", "slow", "now").returncode, 0)

    def test_batches(self):
        done = run("-m", "tiny.gguf", "-o", "batches", "--batch", "1,3", "-n", "8", "--repetitions", "1", "--chat", "-q")
        self.assertEqual(done.returncode, 0, done.stderr)
        runs = self.results("batches")
        self.assertEqual({r["batch"] for r in runs}, {1, 3})
        self.assertTrue(all(r["equal"] for r in runs))
        self.assertTrue(all(r["tokens"] > 8 for r in runs if r["batch"] == 3))
        self.assertIn("Batch size", pathlib.Path("batches/report.html").read_text())

    def test_errors(self):
        def refuse(words, *args):
            done = run(*args)
            self.assertEqual(done.returncode, 1, (words, done.stdout, done.stderr))
            self.assertIn(words, done.stderr)
        pathlib.Path("bad.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"\n')
        refuse("'bad.jsonl' line 2", "bad.jsonl", "-m", "tiny.gguf", "-o", "x")
        refuse("sufix", "data.jsonl", "-m", "tiny.gguf", "-o", "x", "--spec", "sufix")
        refuse("prompt 'fox' has", "data.jsonl", "-m", "tiny.gguf", "-o", "x", "-c", "64")
        refuse("no prompt is long enough", "data.jsonl", "-m", "tiny.gguf", "-o", "x", "--length", "5000")
        refuse("'absent/results.jsonl'", "diff", "absent/results.jsonl", "absent")
        self.assertFalse(os.path.exists("x/results.jsonl"))
        self.assertEqual(run("-m", "tiny.gguf", "-o", "mine", "-n", "4", "--limit", "1", "--repetitions", "1", "-q").returncode, 0)
        refuse("another evaluation", "-m", "tiny.gguf", "-o", "mine", "-n", "4", "--limit", "2", "--repetitions", "1", "-q")


class EvalCells(unittest.TestCase):
    """bench/eval_cells.py"""

    def test_pairs_are_of_one_file(self):
        sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
        import eval_cells

        run = {"category": "a", "length": 0, "temperature": 0, "max_tokens": 8, "batch": 1, "prompt": "p", "repetition": 0}
        with tempfile.TemporaryDirectory() as folder:
            files = []
            for name, plain, auto in (("first", 10, 5), ("second", 20, 20)):  # both have a repetition 0 of the same prompt
                files.append(os.path.join(folder, name))
                with open(files[-1], "w", encoding="utf-8") as lines:
                    for method, ms in (("off", plain), ("auto:draft-model=x", auto)):
                        lines.write(json.dumps({**run, "method": method, "whole_ms": ms}) + "\n")
            self.assertEqual(eval_cells.pairs(files, False), {("a", 0, 0, 8, 1): {"auto": [2.0, 1.0]}})


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
