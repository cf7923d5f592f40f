#!/usr/bin/env python3
"""The help screens and what must agree with them: sizes, every flag of the sources in --help-all, every flag in
docs/cli.md, and one version everywhere. Arguments: the program, the source folder, the package's version file of CMake."""
import os
import pathlib
import re
import subprocess
import sys
import unittest

PROGRAM, SOURCE, PACKAGE = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][A-Za-z0-9-]*")


def output(*args):
    done = subprocess.run([PROGRAM, *args], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (args, done.stderr)
    return done.stdout


def flags_of(help_text):
    """The flags in the left column: '  -n, --predict, --n-predict INT   text'."""
    found = set()
    for line in help_text.split("\n"):
        if row := re.match(r"  (-[^ ,]+(?:, -[^ ,]+)*)(?= |$)", line):
            found.update(row[1].split(", "))
    return found | {"-" + flag for flag in found if re.fullmatch(r"-[a-z]{2,}", flag)}  # -md is --md


def commands():
    return re.findall(r"^  ([a-z][a-z-]*)  ", output("--help"), re.MULTILINE)


class Help(unittest.TestCase):
    def check_size(self, text, most_lines, what):
        lines = text.rstrip("\n").split("\n")
        self.assertLessEqual(len(lines), most_lines, what)
        for line in lines:
            self.assertLessEqual(len(line), 100, f"{what}: {line}")

    def test_the_program_fits_on_a_screen(self):
        self.check_size(output("--help"), 24, "specextend --help")
        self.assertGreaterEqual(len(commands()), 12)

    def test_every_command_fits_on_a_screen(self):
        for command in commands():
            self.check_size(output(command, "--help"), 45, f"{command} --help")
            for line in output(command, "--help-all").split("\n"):
                self.assertLessEqual(len(line), 100, f"{command} --help-all: {line}")

    def test_all_has_every_flag_of_the_sources(self):
        known = set()
        for command in commands():
            common, everything = flags_of(output(command, "--help")), flags_of(output(command, "--help-all"))
            self.assertGreaterEqual(everything, common, command)
            self.assertGreater(len(everything), 2, command)
            known |= everything
        declared = set()
        for path in (SOURCE / "apps/cli").glob("*.cc"):
            for literal in re.findall(r'"(-[^" ]+(?:,-[^" ]+)*)"', path.read_text()):
                declared.update(flag for flag in literal.split(",") if re.fullmatch(r"--?[a-z][a-z0-9-]*[a-z0-9]|-[a-z]", flag))
        declared -= {"--version", "--help", "--help-all", "-h", "--more-spec", "--accept", "--allow-lossy"}  # the program's, or replaced
        self.assertGreater(len(declared), 100)
        self.assertEqual(declared - known, set())
        whole = output("--help-all")
        self.assertEqual(known - flags_of(whole), set())

    def test_help_tells_of_the_rest(self):
        text = output("generate", "--help")
        count = int(re.search(r"--help-all` lists all (\d+) flags", text)[1])
        rows = re.findall(r"^  -", output("generate", "--help-all"), re.MULTILINE)
        self.assertEqual(count, len(rows))
        self.assertLess(count, 60)

    def test_the_document_has_every_flag_and_no_other(self):
        document = (SOURCE / "docs/cli.md").read_text()
        known = {"-h", "--help", "--help-all", "--version"}
        for command in commands():
            self.assertIn(f"specextend {command}", document)
            known |= flags_of(output(command, "--help-all"))
        words = set(FLAG.findall(document))
        words |= {"-" + word for word in words if re.fullmatch(r"-[a-z]{2,}", word)}
        self.assertEqual(known - words, set())
        old = {"--spec-depth", "--more-spec", "--accept", "--allow-lossy"}  # the text says what replaced them
        self.assertEqual(words - known - old, set())


class Version(unittest.TestCase):
    def test_one_version(self):
        version = output("--version").strip()
        project = re.search(r"^project\(specextend VERSION (\S+)", (SOURCE / "CMakeLists.txt").read_text(), re.MULTILINE)[1]
        self.assertEqual(version, project)
        self.assertEqual(re.search(r'set\(PACKAGE_VERSION "([^"]*)"\)', PACKAGE.read_text())[1], version)
        self.assertEqual(re.search(r"^version: (\S+)", (SOURCE / "CITATION.cff").read_text(), re.MULTILINE)[1], version)


if __name__ == "__main__":
    for name in [name for name in os.environ if name.startswith(("LLAMA_ARG_", "SPECEXTEND_"))]:
        del os.environ[name]
    unittest.main(argv=sys.argv[:1])
