"""What the tests of the package share: a tiny model, and the program's answers. The paths are in the environment: SX_PROGRAM and
SX_MAKE_TINY (tests/python/CMakeLists.txt)."""
import functools
import json
import os
import subprocess
import tempfile

PROGRAM = os.environ["SX_PROGRAM"]
FOLDER = tempfile.TemporaryDirectory()
FOX = "A fox, a dog, a fox, a dog, a fox,"


@functools.lru_cache(maxsize=None)
def tiny_model(form=""):
    path = os.path.join(FOLDER.name, f"tiny{form}.gguf")
    subprocess.run([os.environ["SX_MAKE_TINY"], path, *([form] if form else [])], check=True)
    return path


FLAGS = {"max_tokens": "-n", "temperature": "--temp", "top_k": "--top-k", "top_p": "--top-p", "min_p": "--min-p", "seed": "--seed",
         "repeat_penalty": "--repeat-penalty", "presence_penalty": "--presence-penalty", "frequency_penalty": "--frequency-penalty",
         "repeat_last_n": "--repeat-last-n", "grammar": "--grammar", "schema": "--json-schema"}


def program(prompt, *, chat=False, model=None, spec="off", **keywords):
    """What `specextend generate --json` answers for the keywords of the package."""
    command = [PROGRAM, "generate", "-m", model or tiny_model(), "-p", prompt, "--json", "-q", "--device", "cpu", "--spec", spec]
    if chat:
        command.append("--chat")
    for name, value in keywords.items():
        if name == "stop":
            for word in [value] if isinstance(value, str) else value:
                command += ["--stop", word]
        elif name == "logit_bias":
            for token, bias in value.items():
                command += ["--logit-bias", f"{token}{bias:+}"]
        elif name == "ignore_end":
            command += ["--ignore-eos"] if value else []
        elif name == "show_special":
            command += ["--special"] if value else []
        elif name == "schema":
            command += [FLAGS[name], value if isinstance(value, str) else json.dumps(value)]
        else:
            command += [FLAGS[name], str(value)]
    done = subprocess.run(command, capture_output=True, check=True)
    return json.loads(done.stdout)
