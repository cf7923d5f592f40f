"""What the package does beside generating: sessions, schemas, log-probabilities, errors, signals, fork, memory."""
import ast
import asyncio
import gc
import os
import pathlib
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
import typing
import unittest

import bed
import numpy
import pydantic
import specextend
from specextend import LLM


class Animal(pydantic.BaseModel):
    kind: typing.Literal["fox", "dog"]
    legs: typing.Literal[2, 4]


class Features(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = LLM(bed.tiny_model(), spec="suffix:cost-model=off", device="cpu", parallel=3)

    @classmethod
    def tearDownClass(cls):
        cls.llm.close()

    def test_about(self):
        self.assertEqual(self.llm.spec, "suffix")
        self.assertIn("cpu", self.llm.backend)
        self.assertIn("suffix", repr(self.llm))
        self.assertEqual(self.llm.spec_settings["cost-model"], "off")
        self.assertIn("specextend", specextend.presets())
        tokens = self.llm.tokenize(bed.FOX, add_special=False)
        self.assertEqual(self.llm.detokenize(tokens), bed.FOX)
        self.assertEqual(b"".join(map(self.llm.token_bytes, tokens)).decode(), bed.FOX)
        self.assertEqual(self.llm.generate(self.llm.tokenize(bed.FOX), max_tokens=9).text, self.llm.generate(bed.FOX, max_tokens=9).text)

    def test_automatic_speculation(self):
        """Preset auto with a draft model, without one and by default, and what the program takes without --spec."""
        tiny = bed.tiny_model()
        expected = bed.program(bed.FOX, spec="auto", max_tokens=40, temperature=1, seed=5, ignore_end=True)
        for keywords, spec, drafter in (({}, "auto", "suffix"), ({"spec": "auto"}, "auto", "suffix"),
                                        ({"spec": "auto", "draft_model": tiny}, "auto", "fuse"), ({"draft_model": tiny}, "sd", "model")):
            with self.subTest(keywords), LLM(tiny, device="cpu", **keywords) as llm:
                self.assertEqual((llm.spec, llm.spec_settings["drafter"]), (spec, drafter))
                self.assertEqual(llm.draft_model, keywords.get("draft_model", ""))
                answers = llm.generate([bed.FOX] * 3, max_tokens=40, temperature=1, seed=5, ignore_end=True)
                self.assertEqual([answer.text for answer in answers], [expected["text"]] * 3)
                self.assertTrue(llm.verify_lossless(bed.FOX, max_tokens=20, ignore_end=True))
        environment = {**os.environ, "SPECEXTEND_SPEC": "ngram"}
        code = f"from specextend import LLM; print(*(LLM({tiny!r}, device='cpu', spec=spec).spec for spec in (None, 'auto')))"
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout.split(), ["ngram", "auto"])

    def test_schema(self):
        result = self.llm.generate(bed.FOX, schema=Animal, max_tokens=200)
        self.assertIsInstance(result.parsed, Animal)
        plain = self.llm.generate(bed.FOX, schema=Animal.model_json_schema(), max_tokens=200)
        self.assertEqual(plain.parsed, result.parsed.model_dump())
        cut = self.llm.generate(bed.FOX, schema=Animal, max_tokens=2)
        with self.assertRaisesRegex(ValueError, "not whole.*length"):
            cut.parsed
        with self.assertRaisesRegex(ValueError, "no schema"):
            self.llm.generate(bed.FOX, max_tokens=1).parsed
        with self.assertRaisesRegex(specextend.Error, "frog"):
            self.llm.generate(bed.FOX, schema={"type": "frog"})

    def test_logprobs(self):
        result = self.llm.generate(bed.FOX, max_tokens=12, logprobs=3, ignore_end=True)
        self.assertEqual(result.logprobs.shape, (12,))
        self.assertEqual(result.top_tokens.shape, (12, 3))
        self.assertEqual(result.top_logprobs.dtype, numpy.float64)
        self.assertTrue((numpy.diff(result.top_logprobs, axis=1) <= 0).all())
        self.assertTrue((result.top_tokens[:, 0] == result.tokens).all())  # greedy
        self.assertTrue((result.top_logprobs[:, 0] == result.logprobs).all())
        every = self.llm.generate(bed.FOX, max_tokens=1, logprobs=self.llm.vocab, ignore_end=True)
        self.assertAlmostEqual(float(numpy.exp(every.top_logprobs).sum()), 1, places=6)
        plain = self.llm.generate(bed.FOX, max_tokens=12, logprobs=3, ignore_end=True, speculate=False)
        self.assertEqual(plain.top_logprobs.tobytes(), result.top_logprobs.tobytes())
        streamed = [info for piece in self.llm.stream(bed.FOX, max_tokens=12, logprobs=0, ignore_end=True) for info in piece.tokens]
        self.assertEqual([info.logprob for info in streamed], list(result.logprobs))
        self.assertEqual([info.depth for info in streamed], result.depths)
        self.assertIsNone(self.llm.generate(bed.FOX, max_tokens=1).logprobs)

    def test_score(self):
        prompt = self.llm.tokenize(bed.FOX)
        answer = self.llm.generate(prompt, max_tokens=12, logprobs=0, ignore_end=True)
        scores = self.llm.score(prompt + answer.tokens)
        self.assertEqual(scores.shape, (len(prompt) + 11,))
        self.assertEqual(scores[-12:].tobytes(), answer.logprobs.tobytes())  # read or generated: the same bits
        self.assertEqual(self.llm.score(prompt + answer.tokens).tobytes(), scores.tobytes())

    def test_hub_names(self):
        """Which file of a repository is fetched, by a stand-in for huggingface_hub."""
        files = ["a-IQ4_XS.gguf", "a-Q4_K_M.gguf", "a-Q4_K_S.gguf", "README.md"]
        hub = types.SimpleNamespace(list_repo_files=lambda repo: files, hf_hub_download=lambda repo, name: f"{repo}/{name}",
                                    snapshot_download=lambda repo, allow_patterns: f"{repo}/*")
        fetch = specextend._hub._fetch
        self.assertEqual(fetch(hub, "o/a", "q4_k_m"), "o/a/a-Q4_K_M.gguf")
        with self.assertRaisesRegex(specextend.Error, "0 GGUF files of kind Q4.*a-IQ4_XS"):
            fetch(hub, "o/a", "Q4")
        with self.assertRaisesRegex(specextend.Error, "3 GGUF files.*name one"):
            fetch(hub, "o/a", None)
        files[:] = ["config.json", "model.safetensors"]
        self.assertEqual(fetch(hub, "o/a", None), "o/a/*")

    def test_session(self):
        document, path = "A fox and a dog. " * 20, os.path.join(bed.FOLDER.name, "document.state")
        alone = {q: self.llm.chat(f"{document}\n\n{q}", max_tokens=16, ignore_end=True) for q in ("Who?", "Where?")}
        with self.llm.session(document) as session:
            for question, expected in alone.items():
                answer = session.ask(question, max_tokens=16, ignore_end=True)
                self.assertEqual(answer.tokens, expected.tokens)
                self.assertLess(answer.timings["prompt_tokens"], 40)  # the document was read before
                self.assertEqual("".join(session.stream(question, max_tokens=16, ignore_end=True)), expected.text)
            self.assertEqual(asyncio.run(session.aask("Who?", max_tokens=16, ignore_end=True)).tokens, alone["Who?"].tokens)
            session.save(path)
        with self.llm.session(load=path) as session:
            answer = session.ask("Who?", max_tokens=16, ignore_end=True, remember=True)
            self.assertEqual(answer.tokens, alone["Who?"].tokens)
            self.assertLess(answer.timings["prompt_tokens"], 40)
            conversation = [{"role": "user", "content": f"{document}\n\nWho?"}, {"role": "assistant", "content": answer.text},
                            {"role": "user", "content": "Sure?"}]
            self.assertEqual(session.ask("Sure?", max_tokens=8).tokens, self.llm.chat(conversation, max_tokens=8).tokens)
            session.save(path)
        with LLM(bed.tiny_model(), spec="suffix:cost-model=off", device="cpu") as other, other.session(load=path) as session:
            self.assertEqual(session.ask("Sure?", max_tokens=8).tokens, self.llm.chat(conversation, max_tokens=8).tokens)
        with self.assertRaisesRegex(specextend.Error, "closed"):
            session.ask("Who?")
        with self.assertRaises(FileNotFoundError):
            self.llm.session(load=path + "x")

    def test_too_many_sessions(self):
        with LLM(bed.tiny_model(), spec="off", device="cpu", parallel=1) as llm, llm.session() as session:
            with self.assertRaisesRegex(specextend.Error, "larger `parallel`"):
                llm.session()
            with self.assertRaisesRegex(specextend.Error, "larger `parallel`"):
                llm.generate("x", max_tokens=1)
            session.close()
            self.assertEqual(llm.generate("x", max_tokens=1).timings["generated_tokens"], 1)

    def test_closing_a_session_that_runs(self):
        with LLM(bed.tiny_model(), spec="off", device="cpu", context=1000000) as llm:
            session = llm.session("A fox.")
            stream = session.stream("Who?", ignore_end=True)
            next(stream)
            session.close()
            stream.cancel()
            self.assertEqual(stream.result.finish_reason, "cancelled")

    def test_closing_cancels(self):
        """However an iterator is left, its request ends: the only place is free for the next one, long before the text would end."""
        async def task_and_iterators(llm):
            async with llm.astream("x", ignore_end=True) as pieces:
                await anext(pieces)
            pieces = llm.astream("x", ignore_end=True)
            await anext(pieces)
            await pieces.aclose()
            task = asyncio.create_task(llm.agenerate("x", ignore_end=True))
            await asyncio.sleep(0.05)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            return await llm.abatch(["x", "y"], max_tokens=3, ignore_end=True)

        with LLM(bed.tiny_model(), spec="off", device="cpu", context=1000000, parallel=1) as llm:
            expected = llm.generate(["x", "y"], max_tokens=3, ignore_end=True)

            def leave(way):
                stream = llm.stream("x", ignore_end=True)
                next(stream)
                way(stream)
            start = time.monotonic()
            for way in (lambda stream: stream.close(), lambda stream: stream.cancel(), lambda stream: None, lambda stream: stream.__exit__(None, None, None)):
                leave(way)
                self.assertEqual(llm.generate("x", max_tokens=3, ignore_end=True).tokens, expected[0].tokens)
            self.assertEqual([r.tokens for r in asyncio.run(task_and_iterators(llm))], [r.tokens for r in expected])
            self.assertLess(time.monotonic() - start, 60)  # each of those texts would take minutes

    def test_folder(self):
        folder = os.path.join(bed.FOLDER.name, "folder")
        subprocess.run([os.environ["SX_MAKE_TINY"], folder, "--hf"], check=True)
        expected = bed.program(bed.FOX, model=folder, max_tokens=30, temperature=1, seed=3)
        for path in (folder, pathlib.Path(folder)):
            with LLM(path, spec="suffix:cost-model=off", device="cpu") as llm:
                answer = llm.generate(bed.FOX, max_tokens=30, temperature=1, seed=3)
                self.assertEqual((answer.text, answer.tokens), (expected["text"], expected["tokens"]))

    def test_verify(self):
        verified = self.llm.verify_lossless(bed.FOX, max_tokens=30, ignore_end=True, temperature=0.7, seed=3)
        self.assertTrue(verified)
        self.assertEqual((verified.tokens, verified.difference), (30, ""))
        self.assertGreaterEqual(verified.logits, 30 * self.llm.vocab)
        with LLM(bed.tiny_model(), spec="ngram:accept=typical,allow-lossy=on", device="cpu") as lossy:
            with self.assertRaisesRegex(specextend.Error, "typical"):
                lossy.verify_lossless(bed.FOX)

    def test_eval(self):
        rows = [{"prompt": bed.FOX, "id": "fox"}, {"prompt": "One two three", "reference": "four"}]
        found = self.llm.eval(rows, spec=["off", "suffix"], max_tokens=[8], repetitions=2)
        self.assertTrue(found.equal)
        self.assertEqual(len(found.runs), 2 * 2 * 2)
        self.assertIn("<html", found.html)
        self.assertGreaterEqual(len(found.csv.splitlines()), 3)
        self.assertIn("iframe", found._repr_html_())
        with self.assertRaisesRegex(specextend.Error, "nonsense"):
            self.llm.eval(rows, spec=["nonsense"])

    def test_explain(self):
        explanation = self.llm.explain(bed.FOX, max_tokens=20, ignore_end=True, compare=True)
        self.assertIn("<html", explanation.html)
        self.assertIn("<iframe", explanation._repr_html_())
        self.assertNotIn("<script", explanation._repr_html_())  # it is quoted inside of the frame
        self.assertEqual(explanation.data["text"], self.llm.generate(bed.FOX, max_tokens=20, ignore_end=True).text)

    def test_errors(self):
        for match, call in (
                ("absent.gguf", lambda: LLM("absent.gguf")),
                ("neither a file nor a folder.*huggingface_hub", lambda: LLM("nobody/nothing")),
                ("did you mean suffix", lambda: LLM(bed.tiny_model(), spec="sufix")),
                ("device", lambda: LLM(bed.tiny_model(), device="abacus")),
                ("grammar", lambda: self.llm.generate("x", grammar="root ::= (")),
                ("token", lambda: self.llm.generate([10**6])),
                ("temperature", lambda: self.llm.generate("x", temperature=-1)),
        ):
            with self.subTest(match), self.assertRaisesRegex(specextend.Error, match):
                call()
        with self.assertRaisesRegex(TypeError, "no keyword 'temprature'"):
            self.llm.generate("x", temprature=1)
        with self.assertRaisesRegex(TypeError, "max_tokens='9'"):
            self.llm.generate("x", max_tokens="9")
        with self.assertRaisesRegex(ValueError, "exclude"):
            self.llm.generate("x", schema={}, grammar='root ::= "x"')
        with self.assertRaises(specextend.Error):
            list(self.llm.stream("x", grammar="root ::= ("))
        with self.assertRaises(specextend.Error):
            self.llm.batch(["x", "y"], grammar="root ::= (")
        with self.assertRaises(specextend.Error):
            asyncio.run(self.llm.agenerate("x", grammar="root ::= ("))

    def test_closed(self):
        llm = LLM(bed.tiny_model(), spec="off", device="cpu", context=1000000)
        stream, session = llm.stream("x", ignore_end=True), llm.session("A fox.")
        next(stream)
        llm.close()
        llm.close()
        with self.assertRaisesRegex(specextend.Error, "closed"):
            list(stream)
        for call in (lambda: llm.generate("x"), lambda: session.ask("Who?"), lambda: session.save("x.state"), lambda: llm.backend):
            with self.assertRaisesRegex(specextend.Error, "closed"):
                call()
        self.assertEqual(repr(llm), "LLM(closed)")

    def test_gil_is_free(self):
        counted, stop = 0, threading.Event()

        def count():
            nonlocal counted
            while not stop.is_set():
                counted += 1
                time.sleep(0.001)
        thread = threading.Thread(target=count)
        thread.start()
        start = time.monotonic()
        while time.monotonic() - start < 0.3:
            self.llm.generate(bed.FOX, max_tokens=200, ignore_end=True)
        stop.set()
        thread.join()
        self.assertGreater(counted, 20)

    def test_two_models_in_two_threads(self):
        expected = [bed.program(bed.FOX, max_tokens=40, temperature=1, seed=seed)["text"] for seed in range(4)]
        wrong = []

        def work():
            with LLM(bed.tiny_model(), spec="suffix", device="cpu") as llm:
                for seed in range(4):
                    if llm.generate(bed.FOX, max_tokens=40, temperature=1, seed=seed).text != expected[seed]:
                        wrong.append(seed)
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def child(self, code, **more):
        code = f"MODEL = {bed.tiny_model()!r}\n" + textwrap.dedent(code)
        return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)

    def test_interrupt(self):
        for call in ("llm.generate('x', ignore_end=True)", "list(llm.stream('x', ignore_end=True))",
                     "llm.verify_lossless('x', max_tokens=-1, ignore_end=True)"):
            process = self.child(f"""
                from specextend import LLM
                llm = LLM(MODEL, spec="off", device="cpu", context=1000000)
                print("ready", flush=True)
                try:
                    {call}
                except KeyboardInterrupt:
                    print("interrupted", llm.generate("x", max_tokens=3).finish_reason)
                """)
            self.assertEqual(process.stdout.readline(), "ready\n")
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
            self.assertEqual((process.returncode, out.split()[:1]), (0, ["interrupted"]), err)

    def test_fork(self):
        process = self.child("""
            import os, specextend
            def child(work):
                pid = os.fork()
                if pid == 0:
                    try: work(); code = 0
                    except BaseException as error: print(error, flush=True); code = 1
                    os._exit(code)
                return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            def fresh():
                with specextend.LLM(MODEL, spec="suffix", device="cpu") as own: own.generate("x", max_tokens=4)
            print(child(fresh), flush=True)
            llm = specextend.LLM(MODEL, spec="suffix", device="cpu")
            llm.generate("x", max_tokens=4)
            print(child(lambda: llm.generate("x", max_tokens=4)), flush=True)
            def closing():
                global llm
                llm.close(); del llm
                fresh()
            print(child(closing), llm.generate("x", max_tokens=4).timings["generated_tokens"])
            """)
        out, err = process.communicate(timeout=60)
        lines = out.splitlines()
        self.assertEqual((lines[0], lines[-1].split()[0]), ("0", "0"), out + err)
        self.assertIn("before fork()", lines[1])
        self.assertEqual((lines[2], process.returncode), ("1", 0))

    def test_end_of_the_interpreter(self):
        process = self.child("""
            from specextend import LLM
            llm = LLM(MODEL, spec="off", device="cpu")
            stream = llm.stream("x", ignore_end=True)
            print(bool(next(stream)))
            """)
        out, err = process.communicate(timeout=60)
        self.assertEqual((process.returncode, out, err), (0, "True\n", ""))

    def test_no_leak(self):
        def resident():
            gc.collect()
            with open("/proc/self/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * resource.getpagesize()

        def many(count):
            for number in range(count):
                self.llm.generate(bed.FOX, max_tokens=2, seed=number, temperature=1, logprobs=2)
                with self.llm.stream(bed.FOX, max_tokens=50) as stream:
                    next(stream)
        many(500)
        before = resident()
        many(int(os.environ.get("SX_LEAK_CALLS", "5000")))
        self.assertLess(resident() - before, 4 << 20)

    def test_stub(self):
        """The stub of the extension module has the names that the module has."""
        with open(os.path.join(os.path.dirname(specextend.__file__), "_core.pyi"), encoding="utf-8") as file:
            tree = ast.parse(file.read())

        def names(body):
            for node in body:
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                    yield node.name
                elif isinstance(node, ast.AnnAssign):
                    yield node.target.id

        def there(thing):
            return {name for name in vars(thing) if not name.startswith("_")}
        self.assertEqual(set(names(tree.body)), there(specextend._core))
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name != "Error":
                self.assertEqual(set(names(node.body)) - {"__init__"}, there(getattr(specextend._core, node.name)))

    def test_docstrings(self):
        for name in specextend.__all__:
            thing = getattr(specextend, name)
            with self.subTest(name):
                self.assertTrue(thing.__doc__ or isinstance(thing, str))
            for member, value in vars(thing).items() if isinstance(thing, type) else ():
                if not member.startswith("_") and (callable(value) or isinstance(value, property)):
                    with self.subTest(f"{name}.{member}"):
                        self.assertTrue(value.__doc__)

    def test_import_is_quick(self):
        code = "import sys, time; t = time.process_time(); import specextend; print(time.process_time() - t, 'numpy' in sys.modules)"
        runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() for _ in range(3)]
        seconds = min(float(run[0]) for run in runs)
        print(f"import of specextend: {seconds:.3f} s of CPU time", file=sys.stderr)
        self.assertLess(seconds, 0.2)  # CPU time, because the machine may be busy
        self.assertEqual({run[1] for run in runs}, {"False"})


if __name__ == "__main__":
    unittest.main()
