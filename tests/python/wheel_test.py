"""The wheel as its users meet it: built from the sdist by tools/wheel.sh, installed into a fresh virtual environment, a file summarised by three
lines of Python with the bytes of the program that is in the wheel, too. Needs no network: numpy is only needed for log-probabilities."""
import glob
import json
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import zipfile

import bed

THREE_LINES = """
from specextend import LLM
llm = LLM({model!r})
print(llm.chat("Summarise: " + open({file!r}).read(), max_tokens=48).text)
"""

TOOLS = """
from specextend import LLM
with LLM({model!r}, device="cpu") as llm:
    assert llm.spec == "auto", llm.spec
    found = llm.eval([{{"prompt": "The boat left the harbour, the boat"}}], spec=["off", "suffix"], max_tokens=[8], repetitions=1)
    assert found.equal and len(found.runs) == 2 and "<html" in found.html
    shown = llm.explain("The boat left the harbour, the boat", max_tokens=8, compare=True)
    assert "<html" in shown.html and shown.data["text"] == llm.generate("The boat left the harbour, the boat", max_tokens=8).text
"""


def run(command, **more):
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), **more)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def check_server(script, model):
    """`specextend serve` of the wheel answers."""
    with socket.create_server(("127.0.0.1", 0)) as place:
        port = place.getsockname()[1]
    process = subprocess.Popen([script, "serve", "-m", model, "--port", str(port), "-q"], env=environment())
    try:
        end = time.monotonic() + 60
        while True:
            assert process.poll() is None and time.monotonic() < end, "the server does not answer"
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                    assert answer.status == 200
                break
            except OSError:  # it does not listen yet, or says 503 while it loads
                time.sleep(0.1)
        body = json.dumps({"prompt": "Once upon", "max_tokens": 4, "ignore_eos": True}).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/completions", data=body, timeout=60) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 4
    finally:
        process.terminate()
        code = process.wait(60)
    assert code == 0, code


def environment():
    """Without the build tree's package."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPECEXTEND_MODELS"))}


def main():
    source = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        # The flag of the tests' own build, so that the compiler's cache has the objects.
        run([os.path.join(source, "tools", "wheel.sh"), folder, "-C", "cmake.define.SPECEXTEND_STRICT=ON"])
        built = time.monotonic() - start
        [wheel], [sdist] = glob.glob(folder + "/*.whl"), glob.glob(folder + "/*.tar.gz")
        assert "manylinux" in os.path.basename(wheel), wheel
        with zipfile.ZipFile(wheel) as names:
            inside = set(names.namelist())
        for name in ("py.typed", "_core.pyi", "bin/specextend", "share/specextend/models/drafts.json", "share/specextend/fetch_model.py"):
            assert "specextend/" + name in inside, name
        with tarfile.open(sdist) as names:
            packed = {name.split("/", 1)[-1] for name in names.getnames()}
        for name in ("pyproject.toml", "CMakeLists.txt", "src/engine/engine.cc", "python/src/module.cc", "models/drafts.json", "LICENSE"):
            assert name in packed, name

        venv, start = folder + "/venv", time.monotonic()
        run([sys.executable, "-m", "venv", venv])
        run([venv + "/bin/python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel])
        installed = time.monotonic() - start
        script = venv + "/bin/specextend"
        drafts = run([script, "methods"])
        assert f"{venv}/lib" in drafts and "smollm2-135m-small" in drafts, drafts

        file = folder + "/notes.txt"
        with open(file, "w", encoding="utf-8") as text:
            text.write("The boat left the harbour at noon. " * 30)
        model, real = None, True
        try:
            run([venv + "/bin/python", "-c", "import specextend; specextend._core.default_model()"])
        except AssertionError:
            model, real = bed.tiny_model(), False
        answer = run([venv + "/bin/python", "-c", THREE_LINES.format(model=model, file=file)])
        command = [script, "generate", "--chat", "-f", file, "--prefix", "Summarise: ", "-n", "48", "-q"]
        expected = run(command + (["-m", model] if model else []))
        assert answer == expected and len(answer) > 1, (answer, expected)
        run([venv + "/bin/python", "-c", TOOLS.format(model=bed.tiny_model())])
        check_server(script, bed.tiny_model())
        if real:
            code = "from specextend import LLM; print(LLM(spec='specextend').draft_model)"
            draft = run([venv + "/bin/python", "-c", code])
            assert draft.startswith(venv), draft
        code = "import time; t = time.perf_counter(); import specextend; print(round(time.perf_counter() - t, 3))"
        imported = min(run([venv + "/bin/python", "-c", code]) for _ in range(3)).strip()
        print(f"{os.path.basename(wheel)}: {os.path.getsize(wheel) / 1e6:.1f} MB (sdist {os.path.getsize(sdist) / 1e6:.1f} MB), built in {built:.0f} s, "
              f"installed in {installed:.1f} s, imported in {imported} s; the program's bytes with {'the default' if real else 'a tiny'} model")


if __name__ == "__main__":
    main()
