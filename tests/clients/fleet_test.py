"""Two servers behind the router smg (PyPI), as docs/fleet.md has it: questions about a document go to the server that has
it, and when a server is killed only its running streams fail."""
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import subprocess
import sys
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
               "--prometheus-port", str(free_port()), "--health-check-interval-secs", "1", "--health-failure-threshold", "1",
               "--worker-urls", *(server.url for server in servers)]
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

    def documents_stay(self, policy):
        with router(policy, self.servers) as remote:
            placed = []
            for text in QUESTIONS:
                for number in range(1, 7):
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
        with router("prefix_hash", self.servers) as remote, concurrent.futures.ThreadPoolExecutor(16) as pool:
            long = [pool.submit(read, remote, question(n, "Go on.", max_tokens=4000, ignore_eos=True, stream=True))
                    for n in range(1, 13)]
            remote.wait_until("all streams run", lambda: sum(s.running() for s in self.servers) == 12, 60)
            lost = self.servers[0].running()
            self.assertTrue(0 < lost < 12, lost)
            self.servers[0].process.kill()
            self.servers[0].process.wait()
            ended = [one.result() for one in long]
            self.assertEqual(ended.count(False), lost)
            # New questions, also about documents of the lost server, are answered by the other one.
            end = time.monotonic() + 60
            while not all(read(remote, question(n, "And now?", stream=True)) for n in range(1, 13)):
                self.assertLess(time.monotonic(), end, "the router still asks the lost server")


if __name__ == "__main__":
    bed.main()
