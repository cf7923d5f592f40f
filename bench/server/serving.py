"""A running `specextend serve` as the programs beside this file and the tests of clients see it: starting one, asking
it, its gauges, its process. Standard library only."""
import contextlib
import http.client
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
import urllib.parse

PATIENCE = 300  # seconds for anything: sanitizers are slow


class Refused(Exception):
    """An answer that is not 200."""

    def __init__(self, status, headers, answer):
        super().__init__(f"status {status}: {answer}")
        self.status, self.headers, self.answer = status, headers, answer


class Event:
    """One event of a stream: when it came, its JSON (None for a keep-alive comment and for the end)."""

    def __init__(self, data, comment=False, done=False):
        self.time, self.data, self.comment, self.done = time.monotonic(), data, comment, done


class Remote:
    """A server that runs already; with its process id also what the system says about that process."""

    def __init__(self, url, pid=None, key=None):
        parts = urllib.parse.urlsplit(url)
        self.host, self.port, self.pid = parts.hostname, parts.port or 80, pid
        self.headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}

    @property
    def url(self):
        return f"http://{self.host}:{self.port}"

    def _send(self, method, path, body, headers):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE)
        data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        connection.request(method, path, data, {**self.headers, **(headers or {})})
        return connection, connection.getresponse()

    def request(self, method, path, body=None, headers=None):
        """Status, headers and body, parsed where it is JSON."""
        connection, response = self._send(method, path, body, headers)
        with contextlib.closing(connection):
            text = response.read().decode()
            is_json = response.getheader("Content-Type", "").startswith("application/json")
            return response.status, dict(response.getheaders()), json.loads(text) if is_json else text

    def _good(self, method, path, body=None):
        status, headers, answer = self.request(method, path, body)
        if status != 200:
            raise Refused(status, headers, answer)
        return answer

    def get(self, path):
        return self._good("GET", path)

    def post(self, path, body):
        return self._good("POST", path, body)

    def stream(self, path, body):
        """The events of a stream one by one, as they come; closing the generator closes the connection."""
        connection, response = self._send("POST", path, {**body, "stream": True}, None)
        with contextlib.closing(connection):
            if response.status != 200:
                raise Refused(response.status, dict(response.getheaders()), response.read().decode())
            while line := response.readline():
                if line.startswith(b":"):
                    yield Event(None, comment=True)
                elif line.strip() == b"data: [DONE]":
                    yield Event(None, done=True)
                elif line.startswith(b"data: "):
                    yield Event(json.loads(line[6:]))
                elif line.strip():
                    raise ValueError(f"not an event: {line[:200]!r}")

    def metric(self, name):
        """The sum over the labels; 0 where there is none of this name."""
        lines = [line for line in self.get("/metrics").splitlines() if line.startswith((name + "{", name + " "))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def running(self):
        return int(self.metric("vllm:num_requests_running"))

    def waiting(self):
        return int(self.metric("vllm:num_requests_waiting"))

    def wait_until(self, what, condition, seconds=PATIENCE):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"not within {seconds} s: {what}")
            time.sleep(0.02)

    def wait_until_idle(self, seconds=PATIENCE):
        self.wait_until("nothing runs or waits", lambda: self.running() == 0 and self.waiting() == 0, seconds)

    def memory_mib(self):
        """Of the process, a page that it maps several times counted once; of that K/V cells and saved states, as it says itself."""
        with open(f"/proc/{self.pid}/smaps_rollup", encoding="ascii") as lines:
            whole = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
        cells = self.metric("specextend_kv_shared_bytes") + self.metric("specextend_kv_private_bytes")
        return {"whole": whole, "cells": cells / 2**20, "states": self.metric("specextend_saved_state_bytes") / 2**20}

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def tokens_of(self, text):
        return self.post("/tokenize", {"content": text})["tokens"]


class Server(Remote):
    """`specextend serve` on a free port, ended with the `with`."""

    def __init__(self, program, *flags, key=None, environment=None):
        self.keys = tempfile.NamedTemporaryFile("w", suffix=".json")
        json.dump([{"name": "own", "key": key, "admin": True}], self.keys)  # so that gauges are those of all keys
        self.keys.flush()
        command = [program, "serve", "--port", "0", *flags, *(["--api-key-file", self.keys.name] if key else [])]
        self.log = tempfile.TemporaryFile("w+")  # not a pipe: nobody would read it
        self.process = subprocess.Popen(command, stderr=self.log, env={**os.environ, **(environment or {})})
        super().__init__(self._wait_for_address(), self.process.pid, key)

    def _wait_for_address(self):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            ended = self.process.poll() is not None
            for line in self.said().splitlines(keepends=True):
                if line.startswith("listening on ") and line.endswith("\n"):
                    return line.split()[-1]
            if ended:
                raise RuntimeError("no server: " + self.said())
            time.sleep(0.02)
        self.process.kill()
        raise RuntimeError("the server does not begin: " + self.said())

    def said(self):
        """Its standard error so far."""
        return os.pread(self.log.fileno(), 1 << 20, 0).decode(errors="replace")

    def stop(self):
        """Ends it as a service manager does; its exit status (a sanitizer's report is one that is not 0)."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return "did not end within 60 s of SIGTERM"

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        status = self.stop()
        said = self.said()
        self.log.close()
        if kind is None and status != 0:
            raise RuntimeError(f"the server ended with {status}: {said[-8000:]}")


class Watcher:
    """Samples the server's memory on a thread of its own, every so many seconds until the `with` ends."""

    def __init__(self, server, seconds=2):
        self.server, self.seconds, self.samples, self._end = server, seconds, [], threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        begin = time.monotonic()
        while True:
            with contextlib.suppress(OSError, Refused):  # the process has ended: the caller reports it
                self.samples.append((time.monotonic() - begin, self.server.memory_mib()))
            if self._end.wait(self.seconds):
                return

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()


def tiny_model(maker, folder):
    """A random model of a few hundred kilobytes, written by the tests' make_tiny_model."""
    path = os.path.join(folder, "tiny.gguf")
    subprocess.run([maker, path], check=True)
    return path


def text_of(event):
    """The text that an event of either kind of completion brings, by its first choice."""
    choices = event.data.get("choices") if event.data else None
    if not choices:
        return ""
    return choices[0].get("text") or choices[0].get("delta", {}).get("content") or ""
