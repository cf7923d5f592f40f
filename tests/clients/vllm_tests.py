"""vLLM's own tests of its server's endpoints, against `specextend serve`: a measurement, not a test of ./test.

    curl -LO THE ADDRESS OF vllm-0.33.0.tar.gz AT PyPI && tar xzf vllm-0.33.0.tar.gz
    python3 -m venv venv && venv/bin/pip install pytest pytest-asyncio pytest-timeout openai anthropic requests regex jsonschema
    venv/bin/python tests/clients/vllm_tests.py PROGRAM vllm-0.33.0 [ARGUMENTS OF pytest...]

Of its folder tests/entrypoints those files are taken that talk to a server over HTTP about texts (FILES); docs/protocols.md says why
the others are not. They run as they are: what they import of vLLM is a name without content, and the server they start is
this one with the default model under the name that they ask for.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

FILES = ["anthropic/test_messages.py", "openai/chat_completion/test_chat.py", "openai/chat_completion/test_chat_completion.py",
         "openai/chat_completion/test_chat_echo.py", "openai/chat_completion/test_chat_logit_bias_validation.py",
         "openai/chat_completion/test_completion_with_function_calling.py", "openai/chat_completion/test_include_reasoning.py",
         "openai/completion/test_completion.py", "openai/responses/test_simple.py", "openai/test_chunked_prompt.py",
         "openai/test_return_token_ids.py", "openai/test_return_tokens_as_ids.py", "serve/instrumentator/test_basic.py",
         "serve/instrumentator/test_metrics.py", "serve/middleware/test_optional_middleware.py", "serve/tokenize/test_tokenization.py"]

UTILS = '''
"""In the place of vLLM's helpers: a server of another kind."""
import os
import socket
import subprocess
import time

import anthropic
import openai
import requests

VALUES = {"--max-model-len": "-c", "--served-model-name": "-a", "--api-key": "--api-key", "--max-num-seqs": None, "--reasoning-parser": None,
          "--tool-call-parser": None, "--dtype": None, "--chat-template": None, "--max-logprobs": None, "--structured-outputs-config.backend": None,
          "--middleware": None, "--seed": "--seed", "--gpu-memory-utilization": None, "--default-chat-template-kwargs": None}
CONTEXT = 2048
ROCM_EXTRA_ARGS, ROCM_ENV_OVERRIDES = [], {}


class RemoteOpenAIServer:
    DUMMY_API_KEY = "token-abc123"

    def __init__(self, model, args, *, env_dict=None, seed=0, auto_port=True, max_wait_seconds=None, override_hf_configs=None):
        flags, context, named, rest = [], CONTEXT, False, iter(args)
        for flag in rest:
            value = None
            if "=" in flag:
                flag, value = flag.split("=", 1)
            if flag in VALUES:
                value = next(rest) if value is None else value
                if flag == "--max-model-len":
                    context = int(value)
                elif VALUES[flag]:
                    flags += [VALUES[flag], str(value)]
                named = named or flag == "--served-model-name"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.host, self.uds = "127.0.0.1", None
        command = [os.environ["SPECEXTEND_PROGRAM"], "serve", "-q", "--port", str(self.port), "-c", str(context), "--seed", "0", "--parallel", "8",
                   "--queue", "64", *flags, *([] if named else ["-a", model])]
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

    @property
    def url_root(self):
        return f"http://{self.host}:{self.port}"

    def url_for(self, *parts):
        return self.url_root + "/" + "/".join(parts)

    def get_client(self, **more):
        return openai.OpenAI(base_url=self.url_for("v1"), api_key=self.DUMMY_API_KEY, max_retries=0, **{"timeout": 120, **more})

    def get_async_client(self, **more):
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), api_key=self.DUMMY_API_KEY, max_retries=0, **{"timeout": 120, **more})

    def get_client_anthropic(self, **more):
        return anthropic.Anthropic(base_url=self.url_for(), api_key=self.DUMMY_API_KEY, max_retries=0, **more)

    def get_async_client_anthropic(self, **more):
        return anthropic.AsyncAnthropic(base_url=self.url_for(), api_key=self.DUMMY_API_KEY, max_retries=0, **more)
'''

CONFTEST = '''
import importlib.abc
import importlib.machinery
import os
import sys
import types
import unittest.mock


class Nothing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules of vLLM and what it stands on have any name in them, and nothing behind it."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("vllm", "torch", "transformers", "huggingface_hub"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: unittest.mock.MagicMock(name=name)
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Nothing())


def pytest_runtest_logreport(report):
    """With OUTCOMES=FILE each outcome goes there when it is known, with the last line of the error."""
    if "OUTCOMES" in os.environ and (report.when == "call" or report.outcome != "passed"):
        why = [line for line in str(report.longrepr or "").splitlines() if line.startswith("E ")] or [""]
        with open(os.environ["OUTCOMES"], "a") as out:
            out.write(f"{report.outcome} {report.nodeid} {why[0][2:].strip()}\\n")
'''


def main():
    program, source = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="specextend-vllm-tests-") as name:
        folder = pathlib.Path(name)
        shutil.copytree(source / "tests" / "entrypoints", folder / "tests" / "entrypoints")
        (folder / "tests" / "__init__.py").touch()
        (folder / "tests" / "utils.py").write_text(UTILS)
        (folder / "conftest.py").write_text(CONFTEST)
        rest = sys.argv[3:]
        files = [] if any(a.startswith("tests/") for a in rest) else ["tests/entrypoints/" + f for f in FILES]
        command = [sys.executable, "-m", "pytest", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider", "--continue-on-collection-errors",
                   "--timeout=120", "-q", *rest, *files]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(folder), "SPECEXTEND_PROGRAM": str(program)}
        return subprocess.run(command, cwd=folder, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
