#!/usr/bin/env python3
"""What every committed text file keeps to: no paths of somebody's machine, no tabs or trailing spaces, a newline at the
end, scripts that start with #! are executable, links between documents lead to files and headings that exist, and none of the project's retired words where people read (the glossary is in
CONTRIBUTING.md). Prints one line per offence. Code wider than 120 columns is only counted: a table or a regular expression may be
wider. --self-test tries the rules on small examples."""
import pathlib
import re
import subprocess
import sys
import tempfile

# Spelt so that this file does not match itself.
MACHINE_PATHS = re.compile(
    r"(?<![\w.$}])/(?:wor[k]|roo[t]|op[t]/peers|hom[e]/(?!x\b)\w+|tm[p]/(?:buil[d]|bash_job[s]))(?![\w.])")
CODE = {".h", ".cc", ".cu", ".cuh", ".inl", ".py", ".sh", ".cmake"}
CPP = {".h", ".cc", ".cu", ".cuh", ".inl"}
MAX_COLUMNS = 120
TABS_ALLOWED = {"LICENSE"}
# Seeds and golden files are bytes as they are.
BYTES = re.compile(r"^(fuzz/corpus/|tests/(.*/)?(data|golden)/|tests/.*\.txt$|models/)")

# Where the words are checked: prose of documents, comments and text of the sources, names in the sources.
WORDS_IN = re.compile(r"^(src|apps|include)/.*\.(h|cc|cu|cuh|inl|md|json|js|html)$|^(docs|examples)/.*\.md$|^[A-Z]+\.md$")
# (pattern, what to write instead, where it is allowed). Patterns are matched without regard to case, as whole words.
PROBE = r"^src/speculative/cache/retrieval_layers\.cc"  # has a text of its own
WORDS = [
    (r"laws?", "distribution, or batch invariance", None),
    (r"dice", "position-keyed noise, random numbers", None),
    (r"(kv)?books?", "SequenceTable", r"^(src/text|apps)/|^docs/server\.md|" + PROBE),
    (r"strips?", "draft tail, uncommitted cells", r"^(src/text|apps)/|^src/engine/beside_program|^src/engine/convert_vocabulary|^docs/page\.md|^docs/decisions/\d+-jinja"),
    (r"judg(e|es|ed|ing)|verdicts?", "accept, AcceptResult", None),
    (r"stakes?|staked|credits?|afford\w*", "speculation budget", None),
    (r"(?<![`\"'.:])pric(e|es|ed|ing)(?![`\"'=])", "cost, cost model", PROBE),
    (r"company", "batch", None),
    (r"products(?<!dot products)(?<!matrix products)(?<!inner products)", "GEMM, matmuls, MMAs", None),
    (r"units of attention|second-level cache|first-level cache", "KV splits, L2, L1", None),
    (r"(take|takes|taking|in|by) turns", "ping-pong, alternate", None),
    (r"turned keys?|keys? turned", "rotated", None),
    (r"guess(es|ed|ing)? ahead", "staged drafting, propose ahead", None),
    (r"finds? things again|lost the thread|asked into", "retrieval layers; behind the text; prefetch", None),
    (r"news", "delta", r"^apps/server/page/|^docs/numbers"),
    (r"glance|patience", "poll interval, deadline", None),
    (r"(wide )?twins?", "zero-padded upscale", None),
    (r"(?<!page )faults", "reference quirks, errors", None),
    (r"rooms|refusals?|somebody", "modules; rejection, error; the one who does it by name", r"^apps/server/(request_chat|responses_request)\.cc"),
]
WORDS = [(re.compile(rf"\b(?:{pattern})\b", re.I), instead, allowed and re.compile(allowed)) for pattern, instead, allowed in WORDS]
WORDS.append((re.compile(r"\b(?:a|the|of|its|no|and|what) cost_model\b(?![.(_])", re.I), "cost model", None))
# Parts of names: KvBook, draft_laws, kPatience.
NAMES = {"law", "laws", "dice", "book", "verdict", "verdicts", "stake", "staked", "company", "glance", "patience", "news", "twin",
         "twins", "judge", "judged", "afford", "affordable"}
NAME = re.compile(r"[A-Za-z_]\w*")
PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.S)
LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]*))?\)")
FENCED = re.compile(r"```.*?```", re.S)
HEADING = re.compile(r"^#{1,6} +(.+)$", re.M)
INCLUDE = re.compile(r"^\s*#\s*include.*$", re.M)
CODE_SPAN = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)\n]*\)|^ {4}[^\n]*$", re.S | re.M)


def files(root):
    """Tracked files and those that would be: what git sees, or the whole tree outside a repository."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, capture_output=True)
    if done.returncode == 0:
        names = done.stdout.decode().split("\0")
    else:
        names = [p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()]
        names = [n for n in names if not n.startswith((".git/", "build/"))]
    return sorted(n for n in names if n and (root / n).is_file() and not BYTES.match(n))


def blank(found):
    """Spaces instead of a match, so that lines keep their numbers."""
    return re.sub(r"[^\n]", " ", found[0])


def prose_of(name, text):
    """What people read: documents without code, comments and string literals of sources; all of any other file."""
    suffix = pathlib.Path(name).suffix
    if suffix == ".md":
        return CODE_SPAN.sub(blank, text)
    if suffix not in CPP:
        return text
    text = INCLUDE.sub(blank, text)
    kept, at = [], 0
    for token in TOKEN.finditer(text):
        kept += [re.sub(r"[^\n]", " ", text[at:token.start()]), token[0]]
        at = token.end()
    return "".join(kept)


def check_words(name, text):
    if not WORDS_IN.match(name):
        return
    prose = prose_of(name, text)
    for pattern, instead, allowed in WORDS:
        if allowed and allowed.match(name):
            continue
        for found in pattern.finditer(prose):
            yield prose.count("\n", 0, found.start()) + 1, f"retired word '{found[0]}': write {instead}"
    if pathlib.Path(name).suffix not in CPP:
        return
    code = TOKEN.sub(blank, INCLUDE.sub(blank, text))
    for found in NAME.finditer(code):
        part = next((p for p in PART.findall(found[0]) if p.lower() in NAMES), None)
        if part:
            yield code.count("\n", 0, found.start()) + 1, f"retired word '{part.lower()}' in the name {found[0]}"


def anchors(text):
    """What GitHub calls the headings of a document: the second of two alike has -1 behind its name."""
    found = []
    for heading in HEADING.findall(FENCED.sub("", text)):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower().strip()
        name = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        found.append(f"{name}-{found.count(name)}" if name in found else name)
    return found


def check_links(root, name, text):
    """Relative links of a document, from its own folder."""
    if not name.endswith(".md"):
        return
    for found in LINK.finditer(re.sub(r"```.*?```|`[^`\n]*`", blank, text, flags=re.S)):
        target = (root / name).parent / found[1]
        line = text.count("\n", 0, found.start()) + 1
        if not target.exists():
            yield line, f"link to '{found[1]}', which does not exist"
        elif found[2] and (not found[1] or target.suffix == ".md"):
            if found[2] not in anchors(target.read_text(encoding="utf-8") if found[1] else text):
                yield line, f"link to '{found[1]}#{found[2]}': there is no such heading"


def check_file(root, name):
    data = (root / name).read_bytes()
    if b"\0" in data or not data:
        return
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        yield 1, "not UTF-8"
        return
    if not text.endswith("\n"):
        yield text.count("\n") + 1, "no newline at the end of the file"
    if text.startswith("#!") and not (root / name).stat().st_mode & 0o100:
        yield 1, "starts with #! and is not executable"
    for number, line in enumerate(text.split("\n"), 1):
        if line.endswith(("\r", " ", "\t")):
            yield number, "trailing space or carriage return"
        if "\t" in line and name not in TABS_ALLOWED:
            yield number, "tab"
        if match := MACHINE_PATHS.search(line):
            yield number, f"path of one machine: {match[0]}"
    yield from check_words(name, text)
    yield from check_links(root, name, text)


def wide_lines(root, name):
    if pathlib.Path(name).suffix not in CODE:
        return 0
    return sum(len(line) > MAX_COLUMNS for line in (root / name).read_text(errors="replace").split("\n"))


def self_test():
    """(file, text, lines with an offence)."""
    cases = [
        ("src/kv/a.h", "// The law of the target.\nint x;  // a rule\n", [1]),
        ("src/kv/a.h", "int lawn;  // the lawn\n", []),
        ("src/kv/a.cc", "#include \"spec/laws.h\"\nKvBook book_of(int draft_laws);\n", [2, 2, 2]),
        ("src/kv/a.cc", 'fail("the dice of {}");\n', [1]),
        ("src/kv/a.cc", "/* one\n   in company */\nint company_of_all;\n", [2, 3]),
        ("src/kv/a.cc", "// dot products of 4\n// products of weights\n", [2]),
        ("src/text/strip.cc", "// Strips spaces; strip() is Python's.\n", []),
        ("src/kv/strip.cc", "// The strip behind the history.\n", [1]),
        ("apps/server/page/page.js", "// news\n", []),
        ("apps/server/a.cc", "// the news of a stream\n", [1]),
        ("docs/a.md", "Set `price=off` or `--spec x:price=off`.\n\n```\nprice law\n```\n", []),
        ("docs/a.md", "The price of a row.\n", [1]),
        ("docs/a.md", "[decision](decisions/006-prices.md)\n", []),
        ("docs/a.md", "    specextend law\n\nThe law.\n", [3]),
        ("docs/a.md", "They take turns, and the verdict is final.\n", [1, 1]),
        ("docs/numbers/log.txt", "the law\n", []),
        ("tests/kv/a.cc", "// the law\n", []),
        ("LICENSE", "applicable law\n", []),
        ("src/kv/a.h", "// A cost_model that is wrong; see cost_model.h and cost_model() there.\n", [1]),
    ]
    failed = 0
    for name, text, wanted in cases:
        found = sorted(line for line, _ in check_words(name, text))
        if found != wanted:
            print(f"self-test: {name} {text!r}: offences in lines {found}, expected {wanted}")
            failed += 1
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "there.md").write_text("# One `two`: three\n## Same\n## Same\n```\n# x\n```\n")
        text = ("[a](there.md#one-two-three) [b](https://x.org/y) [s](there.md#same-1)\n[c](missing.md) `[d](e.md)`\n"
                "[x](there.md#x) [h](#here) [l](.)\n## Here\n[n](#nowhere)\n")
        if [line for line, _ in check_links(root, "a.md", text)] != [2, 3, 5]:
            print("self-test: links of a document")
            failed += 1
    print(f"self-test: {failed} of {len(cases) + 1} cases failed")
    return 1 if failed else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = pathlib.Path(__file__).resolve().parent.parent
    names = files(root)
    found = [f"{name}:{line}: {problem}" for name in names for line, problem in check_file(root, name)]
    print("\n".join(found) if found else "text: clean")
    print(f"text: {sum(wide_lines(root, name) for name in names)} lines of code are wider than {MAX_COLUMNS} columns")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
