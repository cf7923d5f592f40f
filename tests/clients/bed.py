"""What the tests of clients share: their arguments, the servers they talk to, and a network that ends at this machine.
Arguments of each test: the program, the maker of tiny models; then those of unittest."""
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "server"))
import serving  # noqa: E402
from fence import LEFT, stay_on_this_machine  # noqa: E402

PROGRAM, MAKE_TINY = sys.argv[1:3]
FOLDER = tempfile.TemporaryDirectory(prefix="specextend-clients-")
CITIES = ["Paris", "Oslo", "Rome"]
# A random model writes texts without an end where a schema lets it: these schemas do not.
WEATHER = {"type": "object", "properties": {"city": {"type": "string", "enum": CITIES}, "celsius": {"type": "boolean"}},
           "required": ["city", "celsius"], "additionalProperties": False}
WEATHER_TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city",
                                                 "parameters": WEATHER}}
LONG = {"max_tokens": 100_000, "extra_body": {"ignore_eos": True}}  # far longer than a test waits


def private_environment():
    """Settings, caches and histories of the clients stay in the test's folder; nothing of the user's is seen."""
    for name in [n for n in os.environ if n.startswith(("OPENAI_", "LITELLM_", "LLM_", "LLAMA_", "SPECEXTEND_API", "SPECEXTEND_URL"))
                 or n.lower().endswith("_proxy")]:
        del os.environ[name]
    os.environ.update(HOME=FOLDER.name, XDG_CACHE_HOME=FOLDER.name, XDG_CONFIG_HOME=FOLDER.name, LLM_USER_PATH=FOLDER.name,
                      LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_TELEMETRY="False", DO_NOT_TRACK="1", NO_PROXY="*")


def default_model():
    """The path of the default model, or None where it is not on this machine or would take too long."""
    if "WITHOUT_MODEL" in os.environ:
        return None
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "fetch_model.py"), "--check"], capture_output=True, text=True)
    return done.stdout.strip() or None


REAL = default_model()
private_environment()
stay_on_this_machine()
TINY = serving.tiny_model(MAKE_TINY, FOLDER.name)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def tiny_server(*flags, context=2000, **more):
    return serving.Server(PROGRAM, "-m", TINY, "-a", "tiny", "-c", str(context), "-q", *flags, **more)


def real_server():
    return serving.Server(PROGRAM, "-m", REAL, "-a", "small", "-c", "2048", "-q", "--parallel", "2")


needs_model = unittest.skipUnless(REAL, "the default model is not on this machine")


class Bed(unittest.TestCase):
    """Tests against one server; it must end well, which under a sanitizer means without a report."""
    flags = ("--spec", "suffix", "--parallel", "4")

    @classmethod
    def start(cls):
        return tiny_server(*cls.flags)

    @classmethod
    def setUpClass(cls):
        cls.server = cls.start()
        cls.addClassCleanup(lambda: cls.server.__exit__(None))

    def tearDown(self):
        self.assertEqual(LEFT, [], "a client wanted to leave this machine")
        self.server.wait_until_idle()


def main():
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
