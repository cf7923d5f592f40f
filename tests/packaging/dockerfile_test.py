#!/usr/bin/env python3
"""The Dockerfile without docker: what it copies is there, what it installs exists, what it runs works on what it copies.

    dockerfile_test.py SOURCE [PREFIX]      PREFIX: where `cmake --install` has put the program

service_test.sh looks at the variables, the health check and the libraries.
"""
import fnmatch
import importlib.util
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(sys.argv[1]).resolve()
PREFIX = pathlib.Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else None
FILE = os.environ.get("DOCKERFILE", str(SOURCE / "Dockerfile"))


def instructions():
    """(stage, instruction, arguments) of each line, comments and continuations resolved."""
    with open(FILE) as file:
        lines = [line for line in file.read().splitlines() if not line.lstrip().startswith("#")]
    stage, found = None, []
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        name, rest = line.split(None, 1)
        if name == "FROM":
            words = rest.split()
            stage = words[words.index("AS") + 1] if "AS" in words else "last"
        found.append((stage, name, rest))
    return found


def copies():
    """(stage it is copied from or None, sources, target)"""
    for _, name, rest in instructions():
        if name in ("COPY", "ADD"):
            words = rest.split()
            flags = dict(w[2:].split("=", 1) for w in words if w.startswith("--"))
            paths = [w for w in words if not w.startswith("--")]
            yield flags.get("from"), paths[:-1], paths[-1]


def ignored():
    return [line.strip() for line in (SOURCE / ".dockerignore").read_text().splitlines() if line.strip() and not line.startswith("#")]


def is_sent(path):
    """Whether docker would get this path of the tree. Patterns here are names at the top, and `**/NAME`."""
    parts = pathlib.PurePath(path).parts
    for pattern in ignored():
        if pattern.startswith("**/") and any(fnmatch.fnmatch(part, pattern[3:]) for part in parts):
            return False
        if parts and fnmatch.fnmatch(parts[0], pattern):
            return False
    return True


def packages():
    """(stage, package) of every `apt-get install`."""
    for stage, name, rest in instructions():
        for command in re.split(r"&&|;", rest) if name == "RUN" else ():
            words = shlex.split(command)
            if words[:2] == ["apt-get", "install"]:
                yield from ((stage, word) for word in words[2:] if not word.startswith("-"))


class Dockerfile(unittest.TestCase):
    def test_what_is_copied_is_there(self):
        stages = {stage for stage, _, _ in instructions()}
        own = 0
        for stage, sources, _ in copies():
            if stage:
                self.assertIn(stage, stages)
                continue
            for source in sources:
                own += 1
                self.assertTrue(list(SOURCE.glob(source)) if "*" in source else (SOURCE / source).exists(), source)
                self.assertTrue(source == "." or is_sent(source), f".dockerignore leaves out {source}")
        self.assertGreaterEqual(own, 2)

    def test_what_the_build_makes_is_what_is_taken(self):
        if not PREFIX:
            self.skipTest("nothing was installed")
        product = [rest.split("--prefix ")[1].split()[0] for _, name, rest in instructions() if name == "RUN" and "cmake --install" in rest]
        self.assertEqual(len(product), 1)
        taken = [source for stage, sources, _ in copies() if stage == "build" for source in sources]
        self.assertGreaterEqual(len(taken), 2)
        for path in taken:
            self.assertTrue(path.startswith(product[0] + "/"), path)
            self.assertTrue((PREFIX / path[len(product[0]) + 1:]).exists(), path)

    def test_the_model_is_the_one_that_is_fetched(self):
        spec = importlib.util.spec_from_file_location("fetch_model", SOURCE / "tools/fetch_model.py")
        fetch_model = sys.modules["fetch_model"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(fetch_model)
        name = next(re.search(r"LLAMA_ARG_MODEL=/models/(\S+)", rest)[1] for _, kind, rest in instructions() if kind == "ENV")
        self.assertEqual(name, fetch_model.DEFAULT.name)

    def test_packages_exist(self):
        named = list(packages())
        self.assertGreater(len(named), 10)
        setup = (SOURCE / "tools/setup.sh").read_text()
        usual = set(re.search(r"SX_BUILD_PACKAGES=\((.*?)\)", setup, re.S)[1].split())
        build = {package for stage, package in named if stage == "build"}
        self.assertLessEqual(build, usual)
        self.assertLessEqual(usual - build, {"python3", "python3-pip", "ca-certificates"})  # for the model, a stage of its own
        release = pathlib.Path("/etc/os-release")
        if not shutil.which("apt-cache") or not release.exists() or 'VERSION_ID="12"' not in release.read_text():
            self.skipTest("not a Debian 12: its packages are not known here")
        known = set(subprocess.run(["apt-cache", "pkgnames"], capture_output=True, text=True).stdout.split())
        if len(known) < 10000:
            self.skipTest("there are no lists of packages")
        self.assertEqual({package for _, package in named} - known, set())

    def test_the_build_needs_nothing_that_is_left_out(self):
        run = next(rest for stage, name, rest in instructions() if stage == "build" and name == "RUN" and "cmake --preset" in rest)
        preset = re.search(r"cmake --preset (\S+) -S /source\b", run)[1]
        presets = json.loads((SOURCE / "CMakePresets.json").read_text())["configurePresets"]
        self.assertIn(preset, [p["name"] for p in presets])
        self.assertIn(f"cmake --build /source/build/{preset}", run)
        self.assertIn(f"cmake --install /source/build/{preset} ", run)
        with tempfile.TemporaryDirectory() as folder:
            for path in SOURCE.iterdir():
                if is_sent(path.name):
                    (pathlib.Path(folder) / path.name).symlink_to(path)
            done = subprocess.run(["cmake", "--preset", preset, "-S", folder], capture_output=True, text=True, cwd="/")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("build apps/specextend:", (pathlib.Path(folder) / "build" / preset / "build.ninja").read_text())
            self.assertNotIn("specextend serve: left out", done.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
