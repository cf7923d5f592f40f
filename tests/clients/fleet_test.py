"""Two servers behind the router smg (PyPI), as docs/fleet.md has it: questions about a document go to the server that has
it, and when a server is killed only its running streams fail."""
import concurrent.futures
import contextlib
import http.client
import itertools
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
import unittest

import bed
import serving
from bed import free_port

SMG = pathlib.Path(sys.executable).parent / "smg"
QUESTIONS = ["Who?", "What is it about?", "When was it?", "Why so?"]


def document(number):
    """A text of its own from the first word on, longer than what prefix_hash looks at (256 tokens, or 1,024 characters)."""
    return f"Document {number}. " + " ".join(f"{number}-{i}: item {i * number} of {number}." for i in range(60))


@contextlib.contextmanager
def router(policy, servers):
    port = free_port()
    command = [str(SMG), "launch", "--host", "127.0.0.1", "--port", str(port), "--policy", policy, "--log-level", "error",
               "--prometheus-port", str(free_port()), "--worker-urls", *(server.url for server in servers)]
    # The router and what it starts are a group of their own, so that all of them end with the test.
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    remote = serving.Remote(f"http://127.0.0.1:{port}")
    try:
        remote.wait_until("the router is ready", lambda: answers(remote), 60)
        yield remote
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def answers(remote):
    try:
        return remote.request("POST", "/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": 1})[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def question(number, text, **more):
    return {"model": "tiny", "messages": [{"role": "user", "content": document(number) + "\n" + text}], "max_tokens": 4,
            "temperature": 0, **more}


def read(remote, body):
    """Whether a stream came to its end; an error event, a broken connection and a status are none."""
    try:
        events = list(remote.stream("/v1/chat/completions", body))
        return any(e.done for e in events) and not any("error" in (e.data or {}) for e in events)
    except (OSError, http.client.HTTPException, ValueError, serving.Refused, json.JSONDecodeError):
        return False


@unittest.skipUnless(SMG.exists(), "smg is not in the environment")
class Fleet(unittest.TestCase):
    def setUp(self):
        self.servers = [bed.tiny_server("--spec", "off", "--parallel", "12", context=8000) for _ in range(2)]
        for server in self.servers:
            self.addCleanup(server.__exit__, Exception)  # one of them may have been killed

    def owner(self, remote, number):
        """Which of the servers gets the questions about a document."""
        before = [s.metric("vllm:prompt_tokens_total") for s in self.servers]
        self.assertTrue(read(remote, question(number, QUESTIONS[0], stream=True)))
        return [s.metric("vllm:prompt_tokens_total") > b for s, b in zip(self.servers, before)].index(True)

    def some_of_each(self, remote, count):
        """So many documents of each server. Which these are depends on the servers' ports; a few may all be one's."""
        found = {0: [], 1: []}
        for number in range(1, 200):
            found[self.owner(remote, number)].append(number)
            if all(len(numbers) >= count for numbers in found.values()):
                return {server: numbers[:count] for server, numbers in found.items()}
        self.fail(found)

    def documents_stay(self, policy):
        with router(policy, self.servers) as remote:
            placed = []
            documents = sum(self.some_of_each(remote, 3).values(), []) if policy == "prefix_hash" else range(1, 7)
            for text in QUESTIONS:
                for number in documents:
                    before = [s.metric("vllm:prompt_tokens_total") for s in self.servers]
                    answer = remote.post("/v1/chat/completions", question(number, text))
                    usage = answer["usage"]
                    after = [s.metric("vllm:prompt_tokens_total") for s in self.servers]
                    placed.append((number, [b < a for b, a in zip(before, after)].index(True)))
                    if text != QUESTIONS[0]:  # the server had the document: all but the question was cached
                        cached = usage["prompt_tokens_details"]["cached_tokens"]
                        self.assertGreater(cached, usage["prompt_tokens"] * 0.9, (policy, number, text, usage))
            self.assertEqual(len(set(placed)), 6, placed)  # one server for each document
            return {server for _, server in placed}

    def test_prefix_hash_keeps_documents_together(self):
        self.assertEqual(self.documents_stay("prefix_hash"), {0, 1})

    def test_cache_aware_keeps_documents_together(self):
        self.documents_stay("cache_aware")

    def test_a_killed_server_takes_only_its_own_streams_along(self):
        ending, asked = threading.Event(), []

        def ask(remote, numbers):
            """Short questions, one after the other: about which document, from when to when, and if it was answered."""
            for number in itertools.cycle(numbers):
                begun = time.monotonic()
                good = read(remote, question(number, f"Is it so, {begun}?", stream=True))
                asked.append((number, begun, time.monotonic(), good))
                if ending.is_set():
                    return

        with router("prefix_hash", self.servers) as remote, concurrent.futures.ThreadPoolExecutor(16) as pool, \
                contextlib.ExitStack() as stack:
            stack.callback(ending.set)
            documents = self.some_of_each(remote, 6)
            long = [pool.submit(read, remote, question(n, "Go on.", max_tokens=4000, ignore_eos=True, stream=True))
                    for n in documents[0] + documents[1]]
            remote.wait_until("all streams run", lambda: sum(s.running() for s in self.servers) == 12, 60)
            lost = self.servers[0].running()  # the router may have given some to the one that had less to do
            self.assertTrue(0 < lost < 12, lost)
            short = [pool.submit(ask, remote, [documents[0][k], documents[1][k]]) for k in range(4)]
            time.sleep(1)
            killed = time.monotonic()
            self.servers[0].process.kill()
            self.servers[0].process.wait()
            dead = time.monotonic()
            ended = [one.result() for one in long]
            self.assertEqual(ended.count(False), lost)
            time.sleep(max(0, dead + 5 - time.monotonic()))
            ending.set()
            for one in short:
                one.result()
            # Of the short questions only those failed that ran when the server died, one of each thread at most; the router
            # asks the other server where one does not answer.
            failed = [(begun - killed, end - killed) for _, begun, end, good in asked if not good]
            self.assertTrue(all(begun <= dead - killed and end >= 0 for begun, end in failed), failed)
            self.assertLessEqual(len(failed), len(short))
            for numbers in documents.values():
                self.assertGreater(sum(begun > dead and number in numbers for number, begun, _, _ in asked), 20)
            # New questions, also about documents of the lost server, are answered by the other one.
            end = time.monotonic() + 60
            while not all(read(remote, question(n, "And now?", stream=True)) for n in documents[0] + documents[1]):
                self.assertLess(time.monotonic(), end, "the router still asks the lost server")


if __name__ == "__main__":
    bed.main()
