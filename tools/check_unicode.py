#!/usr/bin/env python3
"""Compares src/text/unicode.h with Python's unicodedata and str: classes, case mapping, normal forms.

    check_unicode.py DRIVER [--sequences N] [--seed S] [--all]

DRIVER is the program unicode_driver of the tests. Compared are all characters that Unicode 3.2 had assigned, which is
what utf8proc and Python agree on whatever their versions, and random sequences of them; --all takes those of this
Python's Unicode version. Exit status: 0 when nothing differs, 1 otherwise.
"""
import argparse
import json
import random
import subprocess
import sys
import unicodedata


class Driver:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, what, text):
        self.process.stdin.write(json.dumps({"do": what, "text": text}).encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


CLASSES = {
    "printable": str.isprintable,
    "white space": lambda c: c.isspace() and not "\x1c" <= c <= "\x1f",  # Python adds the four separators
    "alphanumeric": lambda c: unicodedata.category(c)[0] in "LN",
    "cased": lambda c: c.islower() or c.isupper() or unicodedata.category(c) == "Lt",
}
CASES = {"lower": str.lower, "upper": str.upper, "title": str.title}
FORMS = ["NFC", "NFD", "NFKC", "NFKD"]


def report(name, inputs, ours, theirs):
    """Prints the first inputs whose results differ and returns how many there are."""
    wrong = [text for text, a, b in zip(inputs, ours, theirs) if a != b]
    lost = abs(len(ours) - len(theirs))
    shown = " ".join("+".join(f"{ord(c):04X}" for c in text) for text in wrong[:20])
    print(f"{name}: {len(inputs)} compared, {len(wrong) + lost} differ {shown}")
    return len(wrong) + lost


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("driver")
    parser.add_argument("--sequences", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    driver = Driver(options.driver)
    assigned = (unicodedata if options.all else unicodedata.ucd_3_2_0).category
    chars = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000 and assigned(chr(c)) != "Cn"]
    print(f"{len(chars)} characters; Python has Unicode {unicodedata.unidata_version}")
    wrong = 0
    for name, member in CLASSES.items():
        wrong += report(name, chars, driver(name, "".join(chars)), "".join("01"[member(c)] for c in chars))
    # A newline ends whatever a form or mapping could see of the next character.
    lines = [c for c in chars if c != "\n"]
    for name, mapping in CASES.items():
        wrong += report(name, lines, driver(name, "\n".join(lines)).split("\n"), [mapping(c) for c in lines])
    touched = [c for c in lines if unicodedata.combining(c) or unicodedata.decomposition(c)]
    touched += [chr(c) for c in range(0x1100, 0x1200)] + [chr(c) for c in range(0xAC00, 0xD7A4, 7)]
    touched = [c for c in touched if assigned(c) != "Cn"]
    choose = random.Random(options.seed)

    def sequence():
        pools = [touched, touched, touched, lines, "abc xyz"]
        return "".join(choose.choice(choose.choice(pools)) for _ in range(choose.randrange(2, 10))).replace("\n", "")

    sequences = [sequence() for _ in range(options.sequences)]
    for form in FORMS:
        for name, texts in ((form, lines), (form + " of sequences", sequences)):
            theirs = [unicodedata.normalize(form, text) for text in texts]
            wrong += report(name, texts, driver(form, "\n".join(texts)).split("\n"), theirs)
    print(f"differences: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
