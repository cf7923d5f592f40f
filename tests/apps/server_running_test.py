#!/usr/bin/env python3
"""How requests of `specextend serve` wait, run, share and end: see server_harness.py."""
import json
import os
import re
import signal
import subprocess
import threading
import time
import unittest

from server_harness import (DRAFTS, FOLDER, LONG, MODEL, PATIENCE, PROGRAM, Server, WithServer, cached, in_threads, joined, main,
                            read_until)

TALE = "A long beginning that many requests have in common. " * 12


class Queue(unittest.TestCase):
    def test_full_queue_and_clients_that_leave(self):
        with Server("-q", "--parallel", "1", "--queue", "1", context=100000) as server:
            plain = None
            for round_ in range(2):
                first = server.open_stream({"prompt": "Hi", **LONG})
                self.assertIn(b"200 OK", first.recv(4096))
                server.wait_running()
                second = server.open_stream({"prompt": "Ho", **LONG})
                server.wait_waiting()
                status, headers, answer = server.request("POST", "/v1/completions", {"prompt": "Hu"})
                self.assertEqual((status, answer["error"]["code"]), (429, "queue_full"))
                self.assertGreaterEqual(int(headers["Retry-After"]), 1)
                status, _, answer = server.request("POST", "/v1/completions", {"prompt": "Hu", "n": 2})
                self.assertEqual((status, answer["error"]["code"]), (429, "queue_full"))
                first.close()   # frees the session for the second
                server.wait_cancelled(2 * round_ + 1)
                server.wait_waiting(0)
                server.wait_running()
                second.close()  # and this one for the next
                text = server.text(prompt="Hu", temperature=0, max_tokens=12, ignore_eos=True)
                plain = plain or text
                self.assertEqual(text, plain)
                server.wait_cancelled(2 * round_ + 2)

    def test_clients_leave_in_every_phase(self):
        # Prompts take long in steps of few tokens; they must be given up before their end.
        with Server("-q", "--parallel", "1", "-b", "1", context=60000) as server:
            prompt = {"prompt": [5] * 50000, "max_tokens": 1}
            first = server.open_stream(prompt)
            server.wait_running()
            data = json.dumps(prompt).encode()
            queued = server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
            server.wait_waiting()
            queued.close()
            server.wait_cancelled(1)
            server.wait_waiting(0)
            server.wait_running()  # the other one still
            first.close()
            server.wait_cancelled(2)
            self.assertEqual(server.metric("vllm:request_success_total"), 0)
            decoding = server.raw()
            data = json.dumps({"prompt": "Hi", **LONG}).encode()
            decoding.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
            server.wait_for("tokens", lambda: server.metric("specextend_rounds_total") > 0)
            decoding.close()
            server.wait_cancelled(3)
            self.assertEqual(server.metric("vllm:request_success_total"), 0)
            server.wait_running(0)

    def test_timeouts(self):
        with Server("-q", "--parallel", "1", "--timeout", "1", context=200000) as server:
            status, _, answer = server.request("POST", "/v1/completions", {"prompt": "Hi", **LONG})
            self.assertEqual((status, answer["error"]["code"]), (503, "timeout"))
            events = server.stream("/v1/completions", {"prompt": "Hi", **LONG})
            self.assertIn("timeout", [e["error"]["code"] for e in events if "error" in e])
            self.assertEqual(server.metric("specextend_requests_timeout_total"), 2)
            server.text(prompt="Hi", max_tokens=1)

    def test_streams_show_signs_of_life(self):
        with Server("-q", "--parallel", "1", "--sse-ping-interval", "1", context=200000) as server:
            first = server.open_stream({"prompt": "Hi", **LONG})
            server.wait_running()
            second = server.open_stream({"prompt": "Ho", **LONG})
            self.assertIn(b": keep-alive", read_until(second, b": keep-alive"))
            first.close()
            second.close()
            server.wait_cancelled(2)


class Sharing(WithServer):
    FLAGS, CONTEXT = (*DRAFTS, "--parallel", "4"), 60000

    def test_a_running_requests_text_is_shared(self):
        ask = {"prompt": "Concurrent. " + TALE, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        first = self.server.open_stream({**ask, **LONG})
        read_until(first, b'"text":"')  # its prompt is done
        second = self.server.complete(**ask)
        self.assertGreaterEqual(cached(second), second["usage"]["prompt_tokens"] - 1)
        self.server.wait_running(1)  # the first still
        before = self.server.metric("specextend_requests_cancelled_total")
        first.close()
        self.server.wait_cancelled(before + 1)
        fresh = self.server.complete(**ask, cache_prompt=False)
        self.assertEqual(cached(fresh), 0)
        self.assertEqual(fresh["choices"], second["choices"])

    def test_choices_share_their_prompt(self):
        ask = {"prompt": "Choices. " + TALE, "max_tokens": 30, "ignore_eos": True, "seed": 7}
        before = self.server.metric("vllm:prompt_tokens_total") - self.server.metric("vllm:prompt_tokens_cached_total")
        several = self.server.complete(**ask, n=4)
        processed = self.server.metric("vllm:prompt_tokens_total") - self.server.metric("vllm:prompt_tokens_cached_total") - before
        self.assertLess(processed, 1.5 * several["usage"]["prompt_tokens"])  # not four times
        texts = [c["text"] for c in several["choices"]]
        self.assertEqual([c["index"] for c in several["choices"]], [0, 1, 2, 3])
        self.assertEqual(len(set(texts)), 4)
        self.assertEqual(several["usage"]["completion_tokens"], 120)
        for i, text in enumerate(texts):
            self.assertEqual(self.server.text(**{**ask, "seed": 7 + i}), text)
        events = self.server.stream("/v1/completions", {**ask, "n": 4})
        self.assertEqual([joined(events, False, i) for i in range(4)], texts)
        self.assertEqual(sorted(c["index"] for e in events for c in e["choices"] if c["finish_reason"]), [0, 1, 2, 3])

    def test_mixed_load_changes_nothing(self):
        schema = {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", "yy"]}}, "required": ["a", "b"],
                  "additionalProperties": False}
        asks = []
        for i in range(16):
            ask = {"prompt": (TALE if i % 3 == 0 else "") + f"Story {i % 5}: ", "max_tokens": 20 + 5 * (i % 5), "seed": i,
                   "temperature": i % 3 / 2, "speculate": i % 4 != 1, "ignore_eos": i % 5 != 2}
            if i % 5 == 2:
                ask["response_format"] = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
            asks.append(ask)
        single = [self.server.complete(**ask)["choices"] for ask in asks]
        self.assertEqual(in_threads(len(asks), lambda i: self.server.complete(**asks[i])["choices"]), single)


class Memory(unittest.TestCase):
    def test_texts_without_a_session_are_kept(self):
        for flags, found in (((), True), (("--cache-ram", "0"), False)):
            with Server("-q", "--parallel", "1", *flags) as server:
                asks = [{"prompt": f"{name} " + TALE, "max_tokens": 8, "temperature": 0, "ignore_eos": True} for name in ("One", "Two")]
                first = [server.complete(**ask) for ask in asks]
                again = [server.complete(**ask) for ask in asks]
                for old, new in zip(first, again):
                    self.assertEqual(new["choices"], old["choices"])
                    self.assertLess(cached(old), 20)
                    self.assertEqual(cached(new) >= new["usage"]["prompt_tokens"] - 1, found)
                self.assertEqual(server.metric("specextend_saved_states") > 0, found)


    def test_what_memory_has_no_room_for_goes_to_the_disk(self):
        asks = [{"prompt": [7 + k] + [7 + i * 31 % 240 for i in range(3000)], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
                for k in range(4)]
        with Server("-q", "--parallel", "1", "--cache-ram", "1", "--cache-disk", "100", context=4000) as server:
            first = [server.complete(**ask) for ask in asks]
            again = [server.complete(**ask) for ask in asks]
            self.assertEqual([a["choices"] for a in again], [a["choices"] for a in first])
            self.assertEqual([cached(a) for a in again], [3000] * 4)
            self.assertLess(server.metric("specextend_saved_state_bytes"), 1 << 20)
            self.assertGreater(server.metric("specextend_saved_state_disk_bytes"), 1 << 20)

    def test_one_document_is_read_and_kept_once(self):
        document, asks = [7 + i * 31 % 240 for i in range(3000)], []
        for i in range(8):
            asks.append({"prompt": document + [20 + i, 40, 60], "max_tokens": 30, "temperature": i % 2, "seed": i, "ignore_eos": True})
        with Server("-q", "--parallel", "1", context=4000) as server:
            single = [server.complete(**ask)["choices"] for ask in asks]
        with Server("-q", "--parallel", "8", context=4000) as server:
            answers = in_threads(len(asks), lambda i: server.complete(**asks[i]))
            self.assertEqual([a["choices"] for a in answers], single)
            self.assertLess(sum(a["usage"]["prompt_tokens"] - cached(a) for a in answers), 3000 + 8 * 10)
            info = server.get("/server_info")
            self.assertEqual(info["kv_saved_bytes"], server.metric("specextend_kv_saved_bytes"))
            # Seven of eight documents are spared; what each has of its own is its question and its answer.
            self.assertGreater(info["kv_saved_bytes"], 6 * info["kv_shared_bytes"])
            self.assertLess(info["kv_private_bytes"], info["kv_shared_bytes"])


class Slots(unittest.TestCase):
    def test_save_restore_erase(self):
        folder = os.path.join(FOLDER.name, "slots")
        os.makedirs(folder)
        ask = {"prompt": TALE, "max_tokens": 30, "temperature": 0, "ignore_eos": True}
        flags = ("-q", *DRAFTS, "--parallel", "2", "--cache-ram", "0", "--slot-save-path", folder)
        with Server(*flags) as server:
            first = server.complete(**ask)
            slots = server.get("/slots")
            self.assertEqual([s["id"] for s in slots], [0, 1])
            used = max(slots, key=lambda s: s["n_past"])["id"]
            saved = server.post(f"/slots/{used}?action=save", {"filename": "tale.bin"})
            self.assertGreaterEqual(saved["n_saved"], first["usage"]["prompt_tokens"])
            self.assertEqual(saved["n_written"], os.path.getsize(os.path.join(folder, "tale.bin")))
            self.assertEqual(os.listdir(folder), ["tale.bin"])
            self.assertEqual(server.post(f"/slots/{used}?action=erase", {})["n_erased"], saved["n_saved"])
            self.assertEqual([s["n_past"] for s in server.get("/slots")], [0, 0])
            restored = server.post(f"/slots/{used}?action=restore", {"filename": "tale.bin"})
            self.assertEqual((restored["n_restored"], restored["n_read"]), (saved["n_saved"], saved["n_written"]))
            again = server.complete(**ask)
            self.assertEqual(again["choices"], first["choices"])
            self.assertGreaterEqual(cached(again), again["usage"]["prompt_tokens"] - 1)
            self.refusals(server, folder)
            self.assertEqual(server.complete(**ask)["choices"], first["choices"])
        with Server(*flags) as server:  # another process
            server.post("/slots/1?action=restore", {"filename": "tale.bin"})
            again = server.complete(**ask)
            self.assertEqual(again["choices"], first["choices"])
            self.assertGreaterEqual(cached(again), again["usage"]["prompt_tokens"] - 1)
        with Server("-q", "--parallel", "2", "--slot-save-path", folder, "--ctk", "f32") as server:  # other types of cells
            status, _, answer = server.request("POST", "/slots/0?action=restore", {"filename": "tale.bin"})
            self.assertEqual((status, answer["error"]["param"]), (400, "filename"))
            server.text(**ask)

    def refusals(self, server, folder):
        with open(os.path.join(folder, "tale.bin"), "rb") as file:
            whole = file.read()
        for name, data in (("empty.bin", b""), ("short.bin", whole[:len(whole) // 2]), ("cut.bin", whole[:-1]),
                           ("noise.bin", os.urandom(5000)), ("longer.bin", whole + b"x"),
                           ("flipped.bin", bytes([whole[0] ^ 1]) + whole[1:])):
            with open(os.path.join(folder, name), "wb") as out:
                out.write(data)
            status, _, answer = server.request("POST", "/slots/0?action=restore", {"filename": name})
            self.assertEqual((status, answer["error"]["param"]), (400, "filename"), name)
            self.assertEqual(server.get("/slots")[0]["n_past"], 0)
        for name in ("../x", "/etc/passwd", "a/b", "..", ".", ".hidden", "", "x\x00y", "a\\b", "x" * 300):
            for action in ("save", "restore"):
                status, _, answer = server.request("POST", f"/slots/0?action={action}", {"filename": name})
                self.assertEqual((status, answer["error"]["param"]), (400, "filename"), name)
        self.assertEqual(server.request("POST", "/slots/0?action=restore", {"filename": "none.bin"})[0], 404)
        self.assertEqual(server.request("POST", "/slots/7?action=erase", {})[0], 404)
        self.assertEqual(server.request("POST", "/slots/0?action=burn", {})[0], 400)
        self.assertEqual(server.request("POST", "/slots/0?action=save", {})[0], 400)

    def test_only_where_there_is_a_folder(self):
        with Server("-q", "--parallel", "1", context=100000) as server:
            self.assertEqual(server.request("POST", "/slots/0?action=erase", {})[0], 501)
        done = subprocess.run([PROGRAM, "serve", "-m", MODEL, "--port", "0", "--slot-save-path", "/no/such/folder"], capture_output=True,
                              text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 1)
        self.assertIn("/no/such/folder", done.stderr)

    def test_busy_slots_are_left_alone(self):
        folder = os.path.join(FOLDER.name, "busy")
        os.makedirs(folder)
        with Server("-q", "--parallel", "1", "--slot-save-path", folder, context=100000) as server:
            running = server.open_stream({"prompt": "Hi", **LONG})
            server.wait_running()
            status, _, answer = server.request("POST", "/slots/0?action=erase", {})
            self.assertEqual((status, answer["error"]["code"]), (409, "slot_busy"))
            running.close()
            server.wait_cancelled()


class Keys(unittest.TestCase):
    """What one key asked must not be found out with another."""
    ASK = {"prompt": "Secret. " + TALE, "max_tokens": 3, "temperature": 0, "ignore_eos": True}

    @staticmethod
    def as_key(name):
        return {"Authorization": "Bearer " + name}

    def test_texts_of_another_key_are_not_shared(self):
        folder = os.path.join(FOLDER.name, "keys")
        os.makedirs(folder)
        flags = ["-q", "--parallel", "2", "--slot-save-path", folder]
        for name in ("alpha", "beta", "gamma", "delta"):
            flags += ["--api-key", name]
        alpha, beta = self.as_key("alpha"), self.as_key("beta")
        with Server(*flags) as server:
            first = server.post("/v1/completions", self.ASK, alpha)
            self.assertEqual(cached(server.post("/v1/completions", self.ASK, beta)), 0)
            for slot, name in enumerate(("gamma", "delta")):  # one of them holds alpha's text, or memory does
                guess = server.post("/completion", {**self.ASK, "id_slot": slot}, self.as_key(name))
                self.assertEqual(guess["timings"]["cache_n"], 0)
            again = server.post("/v1/completions", self.ASK, alpha)
            self.assertGreaterEqual(cached(again), again["usage"]["prompt_tokens"] - 1)
            self.assertEqual(again["choices"], first["choices"])
            held = {key: [s["n_past"] for s in server.request("GET", "/slots", headers=self.as_key(key))[2]] for key in ("alpha", "beta", "delta")}
            slot = held["alpha"].index(max(held["alpha"]))
            self.assertGreaterEqual(held["alpha"][slot], again["usage"]["prompt_tokens"])
            self.assertEqual((held["beta"], held["delta"][slot]), ([0, 0], 0))
            for action in ("save", "erase"):
                status, _, answer = server.request("POST", f"/slots/{slot}?action={action}", {"filename": "a.bin"}, beta)
                self.assertEqual((status, answer["error"]["code"]), (403, "slot_of_another_key"))
            saved = server.post(f"/slots/{slot}?action=save", {"filename": "a.bin"}, alpha)
            self.assertGreater(saved["n_saved"], 0)
            self.assertEqual(server.request("POST", f"/slots/{slot}?action=restore", {"filename": "a.bin"}, beta)[0], 404)
            self.assertEqual(server.post("/slots/0?action=restore", {"filename": "a.bin"}, alpha)["n_restored"], saved["n_saved"])
        with Server(*flags, "--share-prefix") as server:
            server.post("/v1/completions", self.ASK, alpha)
            self.assertGreater(cached(server.post("/v1/completions", self.ASK, beta)), 0)

    def test_stored_answers_need_one_key(self):
        flags = ["--port", "0", "-c", "100", "-q", "--api-key", "alpha", "--api-key", "beta"]
        for spec in (("suffix:store=1000",), ("ngram", "suffix:store=1000")):
            presets = [word for name in spec for word in ("--spec", name)]
            done = subprocess.run([PROGRAM, "serve", "-m", MODEL, *flags, *presets],
                                  capture_output=True, text=True, timeout=PATIENCE)
            self.assertEqual(done.returncode, 1)
            self.assertIn("--share-prefix", done.stderr)


class Sizes(unittest.TestCase):
    """Work and memory are bounded by what could be answered, not by what can be sent."""

    def test_large_bodies(self):
        spaces = " " * (15 << 20)
        cases = [("/v1/completions", json.dumps({"prompt": spaces}), "context size of 2000"),
                 ("/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": spaces}]}), "context size of 2000"),
                 ("/v1/completions", '{"prompt": [%s 1]}' % ("1," * (7 << 20)), "the body has more than"),
                 ("/v1/completions", '{"metadata": [%s []]}' % ("[]," * (5 << 20)), "the body has more than")]
        for path, body, words in cases:
            with Server("-q", "--parallel", "1") as server:
                def peak():
                    with open(f"/proc/{server.process.pid}/status") as file:
                        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024  # MiB

                server.text(prompt="Hi", max_tokens=1)
                before = peak()
                status, _, answer = server.request("POST", path, body)
                self.assertEqual(status, 400)
                self.assertIn(words, answer["error"]["message"])
                self.assertLess(peak() - before, 200)  # MiB; 430 for such lists without bounds, 800 for such prompts

    def test_nobody_waits_for_a_long_text(self):
        with Server("-q", "--parallel", "1") as server:
            text, answers, waits = "ab" * (5 << 20), [], []
            long = threading.Thread(target=lambda: answers.append(server.post("/tokenize", {"content": text})["tokens"]))
            start = time.monotonic()
            long.start()
            while long.is_alive():
                asked = time.monotonic()
                server.tokens("Hi")
                waits.append(time.monotonic() - asked)
            self.assertLess(max(waits), 0.5 * (time.monotonic() - start))  # nearly all of it behind a lock
            self.assertTrue(text.endswith(server.post("/detokenize", {"tokens": answers[0][-100:]})["content"]))


def check_exposition(case, text):
    """Prometheus' text format: families with HELP and TYPE once, before their samples, all samples of a family together."""
    types, family, seen, buckets = {}, None, set(), {}
    case.assertTrue(text.endswith("\n"))
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split(" ", 3)[2]
            case.assertNotIn(family, types)
            case.assertGreater(len(line.split(" ", 3)[3]), 5)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            case.assertEqual(name, family)
            case.assertIn(kind, ("counter", "gauge", "histogram"))
            types[name] = kind
        else:
            match = re.fullmatch(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)', line)
            case.assertTrue(match, line)
            name, labels, value = match.groups()
            case.assertEqual(re.sub("_(bucket|sum|count)$", "", name) if types[family] == "histogram" else name, family, line)
            case.assertNotIn((name, labels), seen)
            seen.add((name, labels))
            case.assertGreaterEqual(float(value), 0)
            if name.endswith("_bucket"):
                buckets.setdefault(family, []).append((float(labels.split('le="')[1].rstrip('"')), float(value)))
            elif name.endswith("_count") and types[family] == "histogram":
                case.assertEqual(buckets[family][-1], (float("inf"), float(value)))
    for rows in buckets.values():
        case.assertEqual(rows, sorted(rows))
    return types


class Counters(unittest.TestCase):
    def test_metrics(self):
        with Server("-q", *DRAFTS, "--parallel", "2", "-a", 'na"me\\') as server:
            check_exposition(self, server.get("/metrics"))
            ask = {"prompt": "one two", "max_tokens": 60, "ignore_eos": True, "temperature": 0,
                   "logit_bias": {str(server.tokens("x")[0]): 100}}  # xxx: easy to guess
            first = server.complete(**ask)
            second = server.complete(**ask)
            types = check_exposition(self, server.get("/metrics"))
            for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
                self.assertEqual(types["vllm:" + name], "gauge")
            for name in ("time_to_first_token_seconds", "time_per_output_token_seconds", "inter_token_latency_seconds",
                         "e2e_request_latency_seconds"):
                self.assertEqual(types["vllm:" + name], "histogram")
            metric = server.metric
            self.assertEqual(metric("vllm:generation_tokens_total"), 120)
            self.assertEqual(metric("vllm:prompt_tokens_total"), 2 * first["usage"]["prompt_tokens"] - 2)  # the last is not of the cache
            self.assertEqual(metric("vllm:prefix_cache_hits_total"), cached(first) + cached(second))
            self.assertEqual(metric("vllm:request_success_total"), 2)
            self.assertEqual(metric("vllm:e2e_request_latency_seconds_count"), 2)
            drafts = [a["metrics"]["speculative_decoding"] for a in (first, second)]
            self.assertGreater(drafts[0]["num_accepted_draft_tokens"], 0)
            self.assertEqual(metric("vllm:spec_decode_num_drafts_total"), sum(d["num_spec_steps"] for d in drafts))
            accepted = sum(d["num_accepted_draft_tokens"] for d in drafts)
            self.assertEqual(metric("vllm:spec_decode_num_accepted_tokens_total"), accepted)
            self.assertEqual(metric("vllm:spec_decode_num_accepted_tokens_per_pos_total"), accepted)
            self.assertEqual(metric("specextend_accepted_tokens_total"), accepted)
            self.assertEqual(metric("specextend_rounds_total") + accepted, 120)
            text = server.get("/metrics")
            self.assertIn('ctx="0-1k"', text)
            self.assertIn('model_name="na\\"me\\\\"', text)


    def test_tokens_count_while_they_are_made(self):
        with Server("-q", "--spec", "off", "--parallel", "1", context=100000) as server:
            running = server.open_stream({"prompt": TALE, **LONG})
            server.wait_for("tokens", lambda: server.metric("vllm:generation_tokens_total") >= 5)
            prompt = len(server.tokens(TALE))
            self.assertIn(server.metric("vllm:prompt_tokens_total"), (prompt - 1, prompt))
            self.assertEqual(server.metric("vllm:request_success_total"), 0)
            running.close()
            server.wait_cancelled()
            self.assertGreaterEqual(server.metric("vllm:generation_tokens_total"), 5)  # also of a request that was cancelled
            self.assertGreater(server.metric("specextend_decode_seconds_total"), 0)


class Defaults(unittest.TestCase):
    def test_speculation(self):
        with Server() as server:
            line = next(line for line in server.lines if line.startswith("speculation: "))
            self.assertIn("suffix", line)
            self.assertIn("--spec off", line)
            self.assertEqual(server.get("/props")["presets"], ["suffix"])
            ask = {"prompt": "one two", "max_tokens": 40, "ignore_eos": True, "temperature": 0}
            self.assertEqual(server.text(**ask), server.text(**ask, speculate=False))
        with Server("--spec", "off") as server:
            self.assertIn("speculation: off\n", server.lines)
            self.assertEqual(server.get("/props")["presets"], ["off"])


class Endings(unittest.TestCase):
    def test_signals_end_what_runs(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with Server("-q", "--parallel", "1", "--shutdown-timeout", "0", context=100000) as server:
                running = server.open_stream({"prompt": "Hi", **LONG})
                server.wait_running()
                waiting = []
                thread = threading.Thread(target=lambda: waiting.append(server.request("POST", "/v1/completions", {"prompt": "Ho"})))
                thread.start()
                server.wait_waiting()
                server.process.send_signal(number)
                self.assertEqual(server.process.wait(PATIENCE), 0)
                thread.join()
                self.assertEqual((waiting[0][0], waiting[0][2]["error"]["type"]), (503, "unavailable_error"))
                text = b""
                while piece := running.recv(65536):
                    text += piece
                running.close()
                self.assertIn(b"shutting_down", text)
                self.assertIn(b"data: [DONE]", text)

    def test_flags_are_checked(self):
        for flags, words in ((["--port", "70000"], "port"), (["--parallel", "0"], "parallel"), (["--api-key", ""], "key"),
                             (["--host", "203.0.113.1"], "203.0.113.1"), (["--spec", "nonsense"], "nonsense")):
            done = subprocess.run([PROGRAM, "serve", "-m", MODEL, "-c", "100", "-q", *flags], capture_output=True, text=True,
                                  timeout=PATIENCE)
            self.assertNotEqual(done.returncode, 0, flags)
            self.assertIn(words, done.stderr + done.stdout)

    def test_help(self):
        done = subprocess.run([PROGRAM, "serve", "--help-all"], capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 0)
        for flag in ("--host", "--port", "--api-key", "--parallel", "--queue", "--max-body", "--predict", "--alias", "--spec", "-m"):
            self.assertIn(flag, done.stdout)

    def test_port_in_use(self):
        with Server("-q") as server:
            done = subprocess.run([PROGRAM, "serve", "-m", MODEL, "-c", "100", "-q", "--port", str(server.port)], capture_output=True,
                                  text=True, timeout=PATIENCE)
            self.assertEqual(done.returncode, 1)
            self.assertIn(str(server.port), done.stderr)


if __name__ == "__main__":
    main()
