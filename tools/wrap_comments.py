#!/usr/bin/env python3
"""Wraps paragraphs of // comments that are wider than 120 columns. clang-format is told to leave comments alone, because it takes tables and
lists in them apart; this script leaves lines alone that are indented, that have columns (two spaces inside), or that begin a list, a rule
or a command.

    tools/wrap_comments.py FILE...           rewrites the files
    tools/wrap_comments.py --check FILE...   names the files that would change; exit status 1 if there are any
    tools/wrap_comments.py --self-test
"""
import re
import sys
import textwrap

COLUMNS = 120
COMMENT = re.compile(r"^(\s*)//(?!/) ?(.*)$")
KEPT = re.compile(r"^\s*$|^\s{2,}\S|\S\s{2,}\S|^(?:[-*•] |\d+\. |----|nvcc |g\+\+ |clang-format )")


def wrap_paragraph(indent, lines):
    written = [f"{indent}// {line}" for line in lines]
    if all(len(line) <= COLUMNS for line in written):
        return written
    text = " ".join(line.strip() for line in lines)
    wrapped = textwrap.wrap(text, COLUMNS - len(indent) - 3, break_long_words=False, break_on_hyphens=False)
    return [f"{indent}// {line}" for line in wrapped]


def wrap(text):
    result, paragraph, indent = [], [], ""
    for line in text.split("\n"):
        found = COMMENT.match(line)
        if found and not KEPT.search(found[2]) and (not paragraph or found[1] == indent):
            indent = found[1]
            paragraph.append(found[2])
            continue
        result += wrap_paragraph(indent, paragraph)
        paragraph = []
        if found and not KEPT.search(found[2]):
            indent, paragraph = found[1], [found[2]]
        else:
            result.append(line)
    return "\n".join(result + wrap_paragraph(indent, paragraph))


def self_test():
    long = "word " * 30
    assert wrap("// short\n// lines stay\n") == "// short\n// lines stay\n"
    wrapped = wrap(f"  // {long.strip()}\n  // and more\n  int x;\n")
    assert all(len(line) <= COLUMNS for line in wrapped.split("\n")) and wrapped.endswith("  int x;\n")
    assert wrapped.replace("\n  //", "").split() == f"// {long} and more int x;".split()
    for kept in [f"//   indented {long}", f"// a  table  {long}", f"// - a list {long}", f"int x;  // {long}", f"/// {long}"]:
        assert wrap(kept + "\n") == kept + "\n", kept
    print("self-test: clean")


def main():
    arguments = sys.argv[1:]
    if arguments == ["--self-test"]:
        return self_test()
    check = arguments[:1] == ["--check"]
    wrong = 0
    for name in arguments[1:] if check else arguments:
        with open(name, encoding="utf-8") as file:
            text = file.read()
        wrapped = wrap(text)
        if wrapped == text:
            continue
        wrong += 1
        if check:
            print(f"format: {name} has comments wider than {COLUMNS} columns; run tools/format.sh {name}")
        else:
            with open(name, "w", encoding="utf-8") as file:
                file.write(wrapped)
    return 1 if check and wrong else 0


if __name__ == "__main__":
    sys.exit(main())
