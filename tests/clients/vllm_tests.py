"""vLLM's own tests of its server's endpoints, against `specextend serve`.

    tests/clients/vllm_tests.py --fetch               into ~/.cache/specextend, once: from vLLM's source at PyPI, 47 MB
    build/clients/bin/python tests/clients/vllm_tests.py PROGRAM [ARGUMENTS OF pytest...]

Of its folder tests/entrypoints the files run that talk to a server over HTTP about texts (FILES; of some only a part does);
vllm_tests.txt beside this file says why each other one does not, and which tests of FILES do not pass, each with a reason. They run as
they are: what they import of vLLM is a name without content but for the tokenizer, which is the program's command, and the server they
start is this one with the default model under the name that they ask for. Without arguments of pytest all others must pass, and those must not: exit status 1 if the list
is not what was seen, 77 if there are no tests or there is no model.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from listed import CACHE, RECORD, check_compare, compare, fetch, matches, read_list, read_outcomes, why_not

ARCHIVE = "vllm-0.33.0.tar.gz"
SHA256 = "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112"
TESTS = CACHE / "vllm-tests-0.33.0"
PATIENCE = int(os.environ.get("PATIENCE", "120"))  # seconds for one answer, and for a test that sets no other time
LIST = pathlib.Path(__file__).with_suffix(".txt")
# Whole files, or FILE::TEST for the parts of one whose rest vllm_tests.txt leaves out.
FILES = ["anthropic/test_messages.py", "launchers/api_server/test_multi_api_servers.py", "launchers/test_shutdown.py",
         "openai/chat_completion/test_chat.py", "openai/chat_completion/test_chat_completion.py",
         "openai/chat_completion/test_chat_echo.py", "openai/chat_completion/test_chat_logit_bias_validation.py",
         "openai/chat_completion/test_completion_with_function_calling.py", "openai/chat_completion/test_include_reasoning.py",
         "openai/chat_completion/test_serving_chat.py::TestGPTOSSChat",
         "openai/chat_completion/test_serving_chat.py::TestGPTOSSSpeculativeChat",
         "openai/completion/test_completion.py", "openai/completion/test_prompt_validation.py::test_empty_prompt",
         "openai/completion/test_prompt_validation.py::test_out_of_vocab_token_ids", "openai/completion/test_token_in_token_out.py",
         "openai/responses/test_basic.py", "openai/responses/test_function_call.py", "openai/responses/test_harmony.py",
         "openai/responses/test_parsable_context.py", "openai/responses/test_simple.py", "openai/responses/test_stateful.py",
         "openai/responses/test_structured_output.py", "openai/test_chunked_prompt.py",
         "openai/test_openai_schema.py::test_openapi_stateless", "openai/test_return_token_ids.py",
         "openai/test_return_tokens_as_ids.py", *("serve/instrumentator/test_basic.py::test_" + name for name in
           ("show_version", "check_health", "request_cancellation", "server_load", "health_check_engine_dead_error")),
         "serve/instrumentator/test_metrics.py",
         "serve/middleware/test_optional_middleware.py", "serve/tokenize/test_tokenization.py",
         "tool_parsers/test_openai_tool_parser.py"]

UTILS = '''
"""In the place of vLLM's helpers: a server of another kind."""
import os
import socket
import subprocess
import time

import anthropic
import openai
import requests

VALUES = {"--max-model-len": "-c", "--max_model_len": "-c", "--served-model-name": "-a", "--api-key": "--api-key", "--max-num-seqs": None,
          "--reasoning-parser": None, "--tool-call-parser": None, "--dtype": None, "--chat-template": None, "--max-logprobs": None,
          "--structured-outputs-config.backend": None, "--middleware": None, "--seed": "--seed", "--gpu-memory-utilization": None,
          "--default-chat-template-kwargs": None, "--watermark-config": None, "--shutdown-timeout": "--drain-seconds"}
CONTEXT = 2048
LEAST = 1280  # where thoughts and calls are asked for without a bound: what does not come to an end costs as many tokens
PATIENCE = int(os.environ["PATIENCE"])
ROCM_EXTRA_ARGS, ROCM_ENV_OVERRIDES = [], {}


class RemoteOpenAIServer:
    DUMMY_API_KEY = "token-abc123"
    show_hidden_metrics = False

    def __init__(self, model, args, *, env_dict=None, seed=0, auto_port=True, max_wait_seconds=None, override_hf_configs=None):
        flags, context, named, rest = [], CONTEXT, False, iter(args)
        for flag in rest:
            value = None
            if "=" in flag:
                flag, value = flag.split("=", 1)
            if flag in VALUES:
                value = next(rest) if value is None else value
                if VALUES[flag] == "-c":
                    context = int(value)
                elif VALUES[flag]:
                    flags += [VALUES[flag], str(value)]
                named = named or flag == "--served-model-name"
        if {"--reasoning-parser", "--tool-call-parser", "--tool-server"} & set(args):
            context = min(context, LEAST)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.host, self.uds = "127.0.0.1", None
        command = [os.environ["SPECEXTEND_PROGRAM"], "serve", "-q", "--port", str(self.port), "-c", str(context), "--seed", "0", "--parallel", "8",
                   "--queue", "256", *flags, *os.environ.get("SERVE", "").split(), *([] if named else ["-a", model])]
        self.process = self.proc = subprocess.Popen(command)
        for _ in range(600):
            try:
                if requests.get(self.url_for("health")).status_code == 200:
                    return
            except requests.RequestException:
                pass
            if self.process.poll() is not None:
                raise RuntimeError("no server: " + " ".join(command))
            time.sleep(0.1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def _get_process_termination_timeout(self):
        return 15

    @property
    def url_root(self):
        return f"http://{self.host}:{self.port}"

    def url_for(self, *parts):
        return self.url_root + "/" + "/".join(parts)

    def get_client(self, **more):
        return openai.OpenAI(base_url=self.url_for("v1"), api_key=self.DUMMY_API_KEY, max_retries=0, **{"timeout": PATIENCE, **more})

    def get_async_client(self, **more):
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), api_key=self.DUMMY_API_KEY, max_retries=0, **{"timeout": PATIENCE, **more})

    def get_client_anthropic(self, **more):
        return anthropic.Anthropic(base_url=self.url_for(), api_key=self.DUMMY_API_KEY, max_retries=0, **more)

    def get_async_client_anthropic(self, **more):
        return anthropic.AsyncAnthropic(base_url=self.url_for(), api_key=self.DUMMY_API_KEY, max_retries=0, **more)
'''

CONFTEST = '''
import importlib.abc
import importlib.machinery
import json
import os
import subprocess
import sys
import types
import unittest.mock


NAMES = ("vllm", "torch", "transformers", "huggingface_hub", "fastapi", "gpt_oss", "openai_harmony", "psutil", "pybase64", "rapidfuzz", "starlette")


class Nothing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules of vLLM and of what it stands on have any name in them, and nothing behind it."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in NAMES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: unittest.mock.MagicMock(name=name)
        return module

    def exec_module(self, module):
        for name, value in REAL.get(module.__name__, {}).items():
            setattr(module, name, value)


class Tokenizer:
    """That of the model, by the program's own command."""

    @classmethod
    def from_pretrained(cls, *_, **more):
        return cls()

    def command(self, text, *flags):
        done = subprocess.run([os.environ["SPECEXTEND_PROGRAM"], "tokenize", "-f", "-", *flags], input=text, capture_output=True, text=True, check=True)
        return done.stdout

    def encode(self, text, add_special_tokens=True):
        return json.loads(self.command(text, "--ids"))  # the model has no token before every text

    def decode(self, tokens, skip_special_tokens=False):
        text = self.command(json.dumps(list(tokens)), "--decode") if tokens else ""
        for special in ("<|im_start|>", "<|im_end|>", "<|endoftext|>"):
            text = text.replace(special, "") if skip_special_tokens else text
        return text

    def apply_chat_template(self, conversation, tools=None, tokenize=False, add_generation_prompt=False, continue_final_message=False):
        system = [] if conversation[0]["role"] == "system" else [
            {"role": "system", "content": "You are a helpful AI assistant named SmolLM, trained by Hugging Face"}]
        text = "".join(f"<|im_start|>{m['role']}\\n{m['content']}<|im_end|>\\n" for m in [*system, *conversation])
        text = text.removesuffix("<|im_end|>\\n") if continue_final_message else text
        return text + ("<|im_start|>assistant\\n" if add_generation_prompt else "")

    def convert_ids_to_tokens(self, tokens):
        lines = self.command(self.decode(tokens)).splitlines()
        return [line[9:] for line in lines]


class ModelConfig:
    def __init__(self, *_, **more):
        pass

    def get_vocab_size(self):
        return 49152


REAL = {"vllm": {"version": types.SimpleNamespace(__version__="0.33.0", _prev_minor_version=lambda: "0.32")},
        "vllm.tokenizers": {"get_tokenizer": lambda *_, **more: Tokenizer()}, "transformers": {"AutoTokenizer": Tokenizer},
        "vllm.config": {"ModelConfig": ModelConfig},
        "vllm.outputs": {"RequestOutput": types.SimpleNamespace, "CompletionOutput": types.SimpleNamespace}}  # a file fills some when it is read
sys.meta_path.insert(0, Nothing())
'''

ASSETS = '''
import pytest


class LocalAssetServer:
    def url_for(self, name):
        return "http://127.0.0.1:9/" + name  # images: no test that needs one passes


@pytest.fixture
def local_asset_server():
    return LocalAssetServer()
'''

BALANCE = '''
def check_request_balancing(server, count):
    assert count == 1  # a server of one process has nothing to balance
'''


def run(program, arguments):
    """pytest's exit status, and the outcomes by test."""
    with tempfile.TemporaryDirectory(prefix="specextend-vllm-tests-") as name:
        folder = pathlib.Path(name)
        shutil.copytree(TESTS, folder / "tests")
        for place in (folder / "tests", folder / "tests" / "entrypoints"):
            (place / "__init__.py").touch()
        (folder / "tests" / "utils.py").write_text(UTILS)
        (folder / "tests" / "conftest.py").write_text(ASSETS)
        (folder / "tests" / "v1").mkdir()
        (folder / "tests" / "v1" / "__init__.py").touch()
        (folder / "tests" / "v1" / "utils.py").write_text(BALANCE)
        (folder / "conftest.py").write_text(CONFTEST + RECORD)
        files = [] if any(".py" in a for a in arguments) else ["tests/entrypoints/" + f for f in FILES]
        command = [sys.executable, "-m", "pytest", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider", "--continue-on-collection-errors",
                   f"--timeout={PATIENCE}", "-q", "-k", "not watermarked and not multimodal", "--tb=short", "--show-capture=no", "--dist=loadfile", *arguments, *files]
        record = folder / "outcomes"
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(folder), "SPECEXTEND_PROGRAM": str(program),
                       "OUTCOMES": str(record), "PATIENCE": str(PATIENCE)}
        status = subprocess.run(command, cwd=folder, env=environment).returncode
        return status, read_outcomes(record, "tests/entrypoints/")


def check_files(entries):
    """Every file of the folder runs or is left out, not both; of those that run in part the rest is left out: entries without '::'."""
    wrong = []
    there = sorted(str(path.relative_to(TESTS / "entrypoints")) for path in (TESTS / "entrypoints").rglob("test_*.py"))
    for file in there:
        out = any(matches(pattern, file) for pattern, _ in entries)
        if out == (file in FILES):
            wrong.append(f"{'runs, and is left out' if out else 'neither runs nor is left out'}: {file}")
    wrong += [f"is not there: {name}" for name in FILES if name.partition("::")[0] not in there]
    return wrong + [f"matches no file: {pattern}" for pattern, _ in entries if not any(matches(pattern, file) for file in there)], len(there)


def main():
    if sys.argv[1] == "--fetch":
        return fetch(TESTS, "vllm", ARCHIVE, SHA256, lambda member: member.partition("/tests/")[2] if "/tests/entrypoints/" in member else None)
    program, arguments = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:]
    if reason := why_not(TESTS):
        print(reason)
        return 77
    check_compare()
    entries = read_list(LIST) if LIST.exists() else []
    wrong, files = check_files([e for e in entries if "::" not in e[0]])
    status, outcomes = run(program, arguments)
    if any(not a.startswith(("-n", "--tb")) for a in arguments):
        return status
    more, passed, apply = compare(outcomes, [e for e in entries if "::" in e[0]])
    more += [f"no test ran: {name}" for name in FILES if not any(test.startswith(name) for test in outcomes)]
    if status not in (0, 1):  # 1: tests failed, of which the list says whether they may
        more.append(f"pytest ended with status {status}")
    print("\n".join(wrong + more))
    print(f"{len({name.partition('::')[0] for name in FILES})} of {files} files, {len(outcomes)} tests, {apply} of them about what this server has, with any model; {passed} pass")
    return 1 if wrong or more or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
