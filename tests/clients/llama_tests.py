"""llama.cpp's own tests of its server's endpoints, against `specextend serve`: a measurement, not a test of ./test.

    pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36 && tar xzf llama_cpp_python-0.3.36.tar.gz
    python3 -m venv venv && venv/bin/pip install pytest pytest-timeout filelock requests openai numpy aiohttp wget
    venv/bin/python tests/clients/llama_tests.py PROGRAM llama_cpp_python-0.3.36/vendor/llama.cpp [ARGUMENTS OF pytest...]

The tests are copied to a temporary folder and changed there only in what they know of other models: the text of an answer may be any,
and a number of tokens any number. What they start as llama-server is this file again, which translates its flags.
"""
import ast
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

# Numbers of tokens, which depend on the vocabulary.
COUNTS = {"prompt_n", "predicted_n", "cache_n", "prompt_tokens", "completion_tokens", "total_tokens", "tokens_evaluated", "tokens_predicted",
          "tokens_cached", "cached_tokens", "input_tokens", "output_tokens", "n_saved", "n_restored", "n_erased"}
# Names in llama.cpp's tests that stand for such numbers.
COUNT_NAMES = {"n_prompt", "n_predict", "n_predicted", "n_token_output"}
WITH_VALUE = {"--host", "--port", "--seed", "--temp", "--threads", "--slot-save-path", "--api-key", "--alias", "--cache-ram",
              "--chat-template", "--chat-template-file", "--reasoning-format", "--reasoning", "--parallel"}
WITHOUT_VALUE = {"--cont-batching", "--metrics", "--slots", "--no-slots", "--jinja", "--no-ui", "--verbose"}
# --n-predict is what a request gets that asks for nothing, there, and a bound of all requests here.
IGNORED_WITH_VALUE = {"--hf-repo", "--hf-file", "--batch-size", "--ubatch-size", "-fa", "--model", "--model-url", "--n-predict"}
IGNORED = {"--offline", "--kv-unified", "--swa-full", "--no-cache-idle-slots", "--no-jinja"}
UNDER_OTHER_NAMES = {"--cors-origins": "--cors-origin", "-ctk": "--kv-type"}


# The first event of a chat may have an empty content, as OpenAI's; a preflight may have the status of an empty answer.
HELPERS = [("choice['delta'].get('content') is not None", "choice['delta'].get('content')"),
           ("response = requests.options(url, headers=headers, timeout=timeout)",
            "response = requests.options(url, headers=headers, timeout=timeout)\n            "
            "response.status_code = 200 if response.status_code == 204 else response.status_code")]


def translated(flags):
    """The flags of specextend serve for those of llama-server."""
    out, context, slots, unified, rest = [], 0, 4, "--kv-unified" in flags, iter(flags)
    for flag in rest:
        if flag == "--ctx-size":
            context = int(next(rest))
        elif flag in WITH_VALUE:
            value = next(rest)
            slots = int(value) if flag == "--parallel" else slots
            out += [flag, value]
        elif flag in UNDER_OTHER_NAMES:
            out += [UNDER_OTHER_NAMES[flag], next(rest)]
        elif flag in WITHOUT_VALUE:
            out.append(flag)
        elif flag in IGNORED_WITH_VALUE:
            next(rest)
        elif flag not in IGNORED:
            out.append(flag)  # rejected by the program, and so not passed
    each = context if unified else context // slots  # llama.cpp divides a context among the slots
    return out + ["-c", str(each or 2048)]


def depends_on_model(expected):
    """Whether an expected number belongs to one model: none and one do not, and no number that the test has measured itself."""
    if isinstance(expected, ast.Name):
        return expected.id in COUNT_NAMES
    numbers = [n.value for n in ast.walk(expected) if isinstance(n, ast.Constant)]
    return not any(isinstance(n, ast.Name | ast.Subscript) for n in ast.walk(expected)) and max(numbers, default=0) > 1


class AnyModel(ast.NodeTransformer):
    """Comparisons with a number of tokens become those with any."""

    def __init__(self):
        self.changed = []

    def changed_to(self, node, new):
        self.changed.append(f"{ast.unparse(node)}  ->  {ast.unparse(new)}")
        return new

    def visit_Call(self, node):  # the fingerprint is of this server's version
        self.generic_visit(node)
        text = ast.unparse(node)
        return self.changed_to(node, ast.Constant(True)) if text.endswith("system_fingerprint.startswith('b')") or \
            text.endswith("['system_fingerprint'].startswith('b')") else node

    def visit_Constant(self, node):  # the vocabulary has no token before every text
        if isinstance(node.value, str) and node.value.startswith("<s> "):
            return self.changed_to(node, ast.Constant(node.value[4:]))
        if node.value == "/completions":  # there another name of /completion, here of /v1/completions
            return self.changed_to(node, ast.Constant("/completion"))
        return node

    def visit_BinOp(self, node):  # its tokens are longer: what must be too long is made longer
        self.generic_visit(node)
        if isinstance(node.op, ast.Mult) and isinstance(node.left, ast.Constant) and isinstance(node.left.value, str) \
                and isinstance(node.right, ast.Constant) and node.right.value > 20:
            return self.changed_to(node, ast.BinOp(node.left, ast.Mult(), ast.Constant(node.right.value * 3)))
        return node

    def visit_Compare(self, node):
        self.generic_visit(node)
        text = ast.unparse(node)
        if text.endswith(("delta['content'] is None", "['delta']['content'] is None", "delta.content is None")):  # or empty, as OpenAI's
            return self.changed_to(node, ast.UnaryOp(ast.Not(), node.left))
        if text.endswith(("finish_reason == finish_reason", "['finish_reason'] == finish_reason", "finish_reason == 'length'",
                          "['finish_reason'] == 'length'", "['stop_type'] == 'limit'")):  # the model may end its answer
            return self.changed_to(node, ast.Compare(node.left, [ast.NotEq()], [ast.Constant(None)]))
        if text.startswith("len(res.body['content']) >"):
            return self.changed_to(node, ast.Compare(node.left, [ast.GtE()], [ast.Constant(0)]))
        used = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        equal = len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq)
        if not equal or not (used & COUNTS or names & COUNT_NAMES) or not depends_on_model(node.comparators[0]):
            return node
        return self.changed_to(node, ast.Compare(node.left, [ast.GtE()], [ast.Constant(0)]))


def copy_tests(source, folder, program):
    """The tests with their expectations of models lifted, and a llama-server where they look for it; returns their folder."""
    tests = folder / "tools" / "server" / "tests"
    shutil.copytree(source / "tools" / "server" / "tests", tests)
    (folder / "models").symlink_to((source / "models").resolve())
    changed = []
    for file in sorted((tests / "unit").glob("test_*.py")):
        change = AnyModel()
        file.write_text(ast.unparse(change.visit(ast.parse(file.read_text()))))
        changed += [f"{file.name}: {line}" for line in change.changed]
    helpers = (tests / "utils.py").read_text()
    for old, new in HELPERS:
        assert old in helpers, old
        helpers = helpers.replace(old, new)
    with open(tests / "utils.py", "w") as utils:
        utils.write(helpers)
        utils.write("\n\ndef match_regex(regex, text):\n    return isinstance(text, str)\n")
        utils.write("\n\nServerPreset.load_all = staticmethod(lambda: None)\n")
    fixtures = tests / "conftest.py"  # with pytest-xdist each worker has a port of its own
    fixtures.write_text(fixtures.read_text().replace("8080", "28080"))
    shim = folder / "build" / "bin" / "llama-server"
    shim.parent.mkdir(parents=True)
    shim.write_text(f"#!/bin/sh\nexec {sys.executable} {pathlib.Path(__file__).resolve()} --translate {program} \"$@\"\n")
    shim.chmod(0o755)
    return tests, changed


def main():
    if sys.argv[1] == "--translate":
        program = sys.argv[2]
        os.execv(program, [program, "serve", "-q", *translated(sys.argv[3:])])
    program, source = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="specextend-llama-tests-") as name:
        tests, changed = copy_tests(source, pathlib.Path(name), program)
        print(f"{len(changed)} comparisons with numbers of tokens are lifted", file=sys.stderr)
        print("\n".join(changed), file=sys.stderr)
        command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-p", "no:cacheprovider", "--timeout=120", "-q", *sys.argv[3:]]
        return subprocess.run(command, cwd=tests, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}).returncode


if __name__ == "__main__":
    sys.exit(main())
