"""The examples with curl and with the `openai` package, each as it stands in its folder, against a server with a key."""
import json
import os
import re
import subprocess
import sys

import bed

EXAMPLES = bed.ROOT / "examples"


class Examples(bed.Bed):
    @classmethod
    def start(cls):
        return bed.tiny_server("--spec", "suffix:cost-model=off", context=4000, key="secret")

    def run_example(self, *command, status=0, key="secret"):
        done = subprocess.run([str(c) for c in command], capture_output=True, timeout=300, stdin=subprocess.DEVNULL,
                              env={**os.environ, "SPECEXTEND_URL": self.server.url, "SPECEXTEND_API_KEY": key})
        said = done.stdout.decode(errors="replace")
        self.assertEqual(done.returncode, status, said + done.stderr.decode(errors="replace"))
        return said

    def curl(self, name, *arguments, **more):
        return self.run_example(EXAMPLES / "curl" / name, *arguments, **more)

    def python(self, name, *arguments):
        return self.run_example(sys.executable, EXAMPLES / "openai" / name, *arguments)

    def test_all_are_here(self):
        tested = {"chat.sh", "stream.sh", "json_schema.sh", "tools.sh", "metrics.sh", "server.sh",
                  "chat.py", "long_document.py", "tools.py", "structured_output.py"}
        there = {path.name for folder in ("curl", "openai") for path in (EXAMPLES / folder).iterdir() if path.is_file()}
        self.assertEqual(there, tested)

    def test_curl_chat(self):
        answer = json.loads(self.curl("chat.sh", 'A "question"\nof two lines'))
        self.assertEqual(answer["object"], "chat.completion")
        refused = json.loads(self.curl("chat.sh", key="wrong", status=22))
        self.assertEqual(refused["error"]["code"], "invalid_api_key")

    def test_curl_stream(self):
        texts = []
        for part in self.curl("stream.sh").split("speculate: ")[1:]:
            events = [line[6:] for line in part.splitlines() if line.startswith("data: ")]
            self.assertEqual(events[-1], "[DONE]")
            chunks = [json.loads(event) for event in events[:-1]]
            self.assertGreater(chunks[-1]["usage"]["completion_tokens"], 0)
            texts.append("".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"]))
        self.assertEqual(len(texts), 2)
        self.assertTrue(texts[0])
        self.assertEqual(*texts)

    def test_curl_json_schema(self):
        fruit = json.loads(json.loads(self.curl("json_schema.sh"))["choices"][0]["message"]["content"])
        self.assertEqual(set(fruit), {"colour", "taste", "ripe"})
        self.assertLessEqual(len(fruit["taste"]), 20)

    def test_curl_tools(self):
        (call,) = json.loads(self.curl("tools.sh"))["choices"][0]["message"]["tool_calls"]
        self.assertIn(json.loads(call["function"]["arguments"])["unit"], ("celsius", "fahrenheit"))

    def test_curl_metrics(self):
        self.assertIn("vllm:spec_decode_num_draft_tokens_total", self.curl("metrics.sh"))

    def test_openai_chat(self):
        """What it says of drafts is what the server counts; answers are drawn, and the first may have had none accepted."""
        for _ in range(20):
            before = self.server.metric("vllm:spec_decode_num_accepted_tokens_total")
            said = re.search(r"\[\d+ tokens, (\d+) of them from drafts\]", self.python("chat.py", "tea tea tea tea tea tea tea tea"))
            self.assertEqual(int(said[1]), self.server.metric("vllm:spec_decode_num_accepted_tokens_total") - before)
            if int(said[1]) > 0:
                return
        self.fail("nothing was ever accepted")

    def test_openai_long_document(self):
        document = os.path.join(bed.FOLDER.name, "document.txt")
        with open(document, "w") as file:
            file.write("A fox met a dog. The dog met a fox. " * 40)
        self.assertRegex(self.python("long_document.py", document, "Who met whom?"), r"\[\d+ of [1-9]\d* tokens were drafted\]")

    def test_openai_tools(self):
        said = self.python("tools.py")
        self.assertIn("called: get_weather(", said)
        self.assertIn("answer:", said)

    def test_openai_structured_output(self):
        self.assertRegex(self.python("structured_output.py"), r"^Fruit\(colour='(red|green|yellow)'")


if __name__ == "__main__":
    bed.main()
