#!/usr/bin/env python3
"""Memory of `specextend serve` with the default model: contexts that nobody uses cost nothing, and several questions about one document
cost one document. Skipped (exit 77) without the model, or without a text of 7K tokens that every Debian has."""
import os
import sys
import threading
import unittest

from server_harness import Server, cached, in_threads, main

TEXT = "/usr/share/common-licenses/GPL-3"
CACHE = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
DEFAULT = os.path.join(CACHE, "specextend", "models", "SmolLM2-135M-Instruct.Q4_1.gguf")
DOCUMENT, QUESTIONS = 6000, 8  # tokens; asked at a time
MIB = 1 << 20


def proportional_bytes(pid):
    """Of the process: a page that it maps several times counts once."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as lines:
        return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024


class Peak:
    """The most memory that a server has while this is open, looked at ten times a second."""
    def __init__(self, server):
        self.pid, self.bytes, self.over = server.process.pid, 0, threading.Event()
        self.thread = threading.Thread(target=self.watch)

    def watch(self):
        while not self.over.wait(0.1):
            self.bytes = max(self.bytes, proportional_bytes(self.pid))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


class Memory(unittest.TestCase):
    def server(self, parallel, context):
        return Server("-q", "--parallel", str(parallel), "--cache-ram", "0", context=context, model=DEFAULT)

    def test_contexts_nobody_uses_cost_nothing(self):
        with self.server(64, 8192) as server:  # 12 GB of cells, if they were there
            server.complete(prompt="Hello", max_tokens=4)
            used = proportional_bytes(server.process.pid)
            print(f"64 contexts of 8192: {used / MIB:.0f} MiB")
            self.assertLess(used, 400 * MIB)

    def test_questions_about_one_document(self):
        with open(TEXT, encoding="utf-8") as file:
            text = file.read()
        asks, alone = [], None
        with self.server(QUESTIONS, 8192) as server, Peak(server) as one:
            document = server.tokens(text)[:DOCUMENT]
            self.assertEqual(len(document), DOCUMENT)
            for i in range(QUESTIONS):
                question = server.tokens(f"\n\nQuestion {i}: what does section {i} of this text say? Answer:")
                asks.append({"prompt": document + question, "max_tokens": 24, "temperature": 0, "ignore_eos": True})
            alone = server.text(**asks[0])
        with self.server(QUESTIONS, 8192) as server:
            with Peak(server) as all_:
                answers = in_threads(QUESTIONS, lambda i: server.complete(**asks[i]))
            read = sum(a["usage"]["prompt_tokens"] - cached(a) for a in answers)
            shared, saved = (server.metric(f"specextend_kv_{name}_bytes") for name in ("shared", "saved"))
            again = [server.complete(**ask) for ask in asks]  # one after the other, from what is there
        print(f"one question {one.bytes / MIB:.0f} MiB, {QUESTIONS} at once {all_.bytes / MIB:.0f} MiB ({all_.bytes / one.bytes:.2f}x); "
              f"{read} tokens read, {shared / MIB:.0f} MiB shared, {saved / MIB:.0f} MiB saved")
        self.assertEqual(answers[0]["choices"][0]["text"], alone)
        self.assertEqual([a["choices"] for a in again], [a["choices"] for a in answers])
        self.assertLess(read, DOCUMENT + 50 * QUESTIONS)
        self.assertLess(all_.bytes, 1.3 * one.bytes)
        self.assertGreater(saved, (QUESTIONS - 2) * shared / 2)


if not (os.path.exists(TEXT) and os.path.exists(DEFAULT) and os.path.exists("/proc/self/smaps_rollup")):
    print(f"skipped: needs {TEXT} and {DEFAULT}")
    sys.exit(77)
main()
