"""llama.cpp's own tests of its server's endpoints, against `specextend serve`.

    tests/clients/llama_tests.py --fetch              into ~/.cache/specextend, once: from llama-cpp-python's source at PyPI, 77 MB
    build/clients/bin/python tests/clients/llama_tests.py PROGRAM [ARGUMENTS OF pytest...]

The tests are copied to a temporary folder and changed there only in what they know of other models: the text of an answer may be any,
and a number of tokens any number. What they start as llama-server is this file again, which translates its flags. llama_tests.txt beside
this file has the tests that do not pass, each with a reason. Without arguments of pytest all others must pass, and those must
not: exit status 1 if the list is not what was seen, 77 if there are no tests or there is no model.
"""
import ast
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from listed import CACHE, RECORD, check_compare, compare, fetch, read_list, read_outcomes, why_not

ARCHIVE = "llama_cpp_python-0.3.36.tar.gz"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
TESTS = CACHE / "llama-tests-0.3.36"
LIST = pathlib.Path(__file__).with_suffix(".txt")
# Files about what the server has none of at all: adapters, tools that the server runs, images, other models beside the first, sleeping,
# and lines of a log.
LEFT_OUT = ("lora", "mcp_servers", "tools_builtin", "proxy", "vision_api", "router", "sleep", "kv_keep_only_active")

# Numbers of tokens, which depend on the vocabulary.
COUNTS = {"prompt_n", "predicted_n", "cache_n", "prompt_tokens", "completion_tokens", "total_tokens", "tokens_evaluated", "tokens_predicted",
          "tokens_cached", "cached_tokens", "input_tokens", "output_tokens", "n_saved", "n_restored", "n_erased"}
# Names in llama.cpp's tests that stand for such numbers.
COUNT_NAMES = {"n_prompt", "n_cache", "n_predict", "n_predicted", "n_token_output"}
WITH_VALUE = {"--host", "--port", "--seed", "--temp", "--threads", "--slot-save-path", "--api-key", "--alias", "--cache-ram",
              "--chat-template", "--chat-template-file", "--reasoning-format", "--reasoning", "--parallel"}
WITHOUT_VALUE = {"--cont-batching", "--metrics", "--slots", "--no-slots", "--jinja", "--no-ui", "--verbose"}
# --n-predict is what a request gets that asks for nothing, there, and a bound of all requests here.
IGNORED_WITH_VALUE = {"--hf-repo", "--hf-file", "--batch-size", "--ubatch-size", "-fa", "--model", "--model-url", "--n-predict"}
IGNORED = {"--offline", "--kv-unified", "--swa-full", "--no-cache-idle-slots", "--no-jinja"}
UNDER_OTHER_NAMES = {"--cors-origins": "--cors-origin", "-ctk": "--kv-type"}
DRAFTS = {"--model-draft", "--spec-type", "--spec-draft-n-min"}  # the model's own draft is meant, whatever the cost


# The first event of a chat may have an empty content, as OpenAI's; a preflight may have the status of an empty answer.
HELPERS = [("choice['delta'].get('content') is not None", "choice['delta'].get('content')"),
           ("response = requests.options(url, headers=headers, timeout=timeout)",
            "response = requests.options(url, headers=headers, timeout=timeout)\n            "
            "response.status_code = 200 if response.status_code == 204 else response.status_code")]


def translated(flags):
    """The flags of specextend serve for those of llama-server."""
    out, context, slots, unified, rest, drafts = [], 0, 4, "--kv-unified" in flags, iter(flags), None
    for flag in rest:
        if flag == "--ctx-size":
            context = int(next(rest))
        elif flag in WITH_VALUE:
            value = next(rest)
            if (flag, value) == ("--reasoning", "auto"):
                value = "on"  # there auto thinks wherever the template can; here it leaves that to the template
            slots = int(value) if flag == "--parallel" else slots
            out += [flag, value]
        elif flag in UNDER_OTHER_NAMES:
            out += [UNDER_OTHER_NAMES[flag], next(rest)]
        elif flag in WITHOUT_VALUE:
            out.append(flag)
        elif flag in DRAFTS:
            next(rest)
            drafts = drafts or "specextend:cost-model=off"
        elif flag == "--spec-draft-n-max":
            drafts = f"specextend:cost-model=off,nodes={next(rest)}"
        elif flag in IGNORED_WITH_VALUE:
            next(rest)
        elif flag not in IGNORED:
            out.append(flag)  # rejected by the program, and so not passed
    each = context if unified else context // slots  # llama.cpp divides a context among the slots
    return out + ["-c", str(each or 2048), *(["--spec", drafts] if drafts else [])]


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


def wanted(member):
    _, _, path = member.partition("/vendor/llama.cpp/")
    return path if path.startswith(("tools/server/tests/", "models/templates/")) else None


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
    fixtures.write_text(fixtures.read_text().replace("8080", "28080") + RECORD)
    (tests / "wget.py").write_text("def download(url, out):\n    pass  # nothing is fetched\n")
    shim = folder / "build" / "bin" / "llama-server"
    shim.parent.mkdir(parents=True)
    shim.write_text(f"#!/bin/sh\nexec {sys.executable} {pathlib.Path(__file__).resolve()} --translate {program} \"$@\"\n")
    shim.chmod(0o755)
    return tests, changed


def main():
    if sys.argv[1] == "--fetch":
        return fetch(TESTS, "llama-cpp-python", ARCHIVE, SHA256, wanted)
    if sys.argv[1] == "--translate":
        program = sys.argv[2]
        os.execv(program, [program, "serve", "-q", *translated(sys.argv[3:])])
    program, arguments = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:]
    if reason := why_not(TESTS):
        print(reason)
        return 77
    check_compare()
    with tempfile.TemporaryDirectory(prefix="specextend-llama-tests-") as name:
        tests, changed = copy_tests(TESTS, pathlib.Path(name), program)
        print(f"{len(changed)} comparisons with numbers of tokens are lifted")
        print("\n".join(changed))
        command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-p", "no:cacheprovider", "--timeout=120", "-q", "-m", "not slow", "--tb=short",
                   "--show-capture=no", *(f"--ignore=unit/test_{name}.py" for name in LEFT_OUT), *arguments]
        record = pathlib.Path(name) / "outcomes"
        status = subprocess.run(command, cwd=tests, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OUTCOMES": str(record)}).returncode
        outcomes = read_outcomes(record, "unit/")
    wrong, passed, apply = compare(outcomes, read_list(LIST))
    if any(not a.startswith(("-n", "--tb")) for a in arguments):
        return status
    print("\n".join(wrong))
    print(f"{len(outcomes)} tests, {apply} of them about what this server has; {passed} pass")
    return 1 if wrong or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
