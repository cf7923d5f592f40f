#!/usr/bin/env python3
"""The C interface through ctypes: loads the shared library, whose only visible symbols are those of the header, and gets the
program's bytes for the same options. Arguments: the library, the program, the maker of tiny models, the header."""
import ctypes as c
import pathlib
import re
import subprocess
import sys
import tempfile


class EngineOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("model", c.c_char_p), ("spec", c.c_char_p), ("device", c.c_char_p), ("kv_type", c.c_char_p),
                ("context", c.c_int32), ("threads", c.c_int32), ("max_sessions", c.c_int32), ("startup_cache", c.c_char_p)]


class FirstGenerateOptions(c.Structure):
    """As an early version would have them: a program that knows fewer members works with a library that knows more."""
    _fields_ = [("size", c.c_size_t), ("max_tokens", c.c_int32), ("temperature", c.c_float), ("top_k", c.c_int32)]


def main():
    library, program, make_tiny, header = sys.argv[1:]
    names = set(re.findall(r"^[\w* ]+?\b(sx_\w+)\(", pathlib.Path(header).read_text(), re.M))
    assert len(names) > 20, names
    symbols = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    visible = {line.split()[-1].split("@")[0] for line in symbols.splitlines()}
    assert visible == names, visible ^ names

    sx = c.CDLL(library)
    sx.sx_last_error.restype = sx.sx_engine_backend.restype = c.c_char_p
    sx.sx_result_text.restype = c.c_void_p
    for name in ("sx_engine_backend", "sx_session_close", "sx_engine_close", "sx_result_free"):
        getattr(sx, name).argtypes = [c.c_void_p]

    def must(status):
        assert status == 0, sx.sx_last_error().decode()

    with tempfile.TemporaryDirectory() as folder:
        model, prompt = folder + "/tiny.gguf", b"A fox, a dog, a fox, a dog,"
        subprocess.run([make_tiny, model], check=True)
        options = EngineOptions()
        sx.sx_engine_options_init(c.byref(options), c.c_size_t(c.sizeof(options)))
        options.model, options.spec, options.device, options.startup_cache = model.encode(), b"suffix", b"cpu", b""
        engine, session, result = c.c_void_p(), c.c_void_p(), c.c_void_p()
        must(sx.sx_engine_open(c.byref(options), c.byref(engine)))
        assert sx.sx_engine_backend(engine).startswith(b"cpu")
        tokens, count = (c.c_int32 * 256)(), c.c_size_t()
        must(sx.sx_tokenize(engine, prompt, c.c_size_t(len(prompt)), 1, 1, tokens, c.c_size_t(256), c.byref(count)))
        must(sx.sx_session_start(engine, c.byref(session)))
        generate = FirstGenerateOptions()
        sx.sx_generate_options_init(c.byref(generate), c.c_size_t(c.sizeof(generate)))
        generate.max_tokens, generate.temperature = 32, 0.9
        must(sx.sx_session_generate(session, tokens, count, c.byref(generate), c.byref(result)))
        size = c.c_size_t()
        text = c.string_at(sx.sx_result_text(result, c.byref(size)), size.value)
        sx.sx_result_free(result)
        sx.sx_session_close(session)
        sx.sx_engine_close(engine)
        command = [program, "generate", "-m", model, "-p", prompt.decode(), "-n", "32", "--temp", "0.9", "--device", "cpu", "-q"]
        expected = subprocess.run(command, capture_output=True, check=True).stdout
        assert text + b"\n" == expected, (text, expected)
    print("ctypes: the program's bytes,", len(names), "functions")


if __name__ == "__main__":
    main()
