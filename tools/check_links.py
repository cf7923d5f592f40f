#!/usr/bin/env python3
"""Checks that relative links in the repository's Markdown lead somewhere: the file is there, and so is the heading.

    tools/check_links.py [--self-test]
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\(([^()\s]+(?:\([^()\s]*\))?)\)")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


def anchors(text):
    """The names that GitHub gives to headings, and those of HTML anchors."""
    found, seen = set(re.findall(r'<a (?:id|name)="([^"]+)"', text)), {}
    for heading in re.findall(r"^#{1,6} +(.+?)(?: +#+)?$", FENCE.sub("", text), re.MULTILINE):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        name = re.sub(r"[^\w\- ]", "", heading.lower().strip()).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if name in seen else name)
        seen[name] = seen.get(name, 0) + 1
    return found


def wrong_links(name, text, files, folders):
    """Messages about the links of document `name`; `files` has the texts of all documents and None for other files."""
    here, wrong = pathlib.PurePosixPath(name).parent, []
    plain = re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))
    for target in LINK.findall(plain):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        parts = []
        for part in (here / path).parts if path else pathlib.PurePosixPath(name).parts:
            if part == ".." and parts:
                parts.pop()
            elif part != ".":
                parts.append(part)
        place = "/".join(parts)
        if place not in files and place not in folders:
            wrong.append(f"{name}: {target}: there is no {place}")
        elif anchor and files.get(place) is not None and anchor not in anchors(files[place]):
            wrong.append(f"{name}: {target}: {place} has no such heading")
    return wrong


def self_test():
    files = {"a.md": "# One `two`: three\n## Same\n## Same\n", "b/c.md": "", "d.txt": None}
    good = "[x](../a.md#one-two-three) [y](c.md) [z](../d.txt) [w](../a.md#same-1) [v](../b) [u](https://x.y/z) `[no](no)`"
    assert wrong_links("b/c.md", good, files, {"", "b"}) == []
    for bad in ("[x](../e.md)", "[x](../a.md#four)", "[x](a.md)", "[x](#here)", "[x](../a.md#same-2)"):
        assert len(wrong_links("b/c.md", bad, files, {"", "b"})) == 1, bad


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return 0
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    files = {name: (ROOT / name).read_text() if name.endswith(".md") else None for name in names}
    folders = {"", *(str(parent) for name in names for parent in pathlib.PurePosixPath(name).parents)}
    wrong = [line for name, text in files.items() if text is not None for line in wrong_links(name, text, files, folders)]
    print("\n".join(wrong) or f"{sum(text is not None for text in files.values())} documents: every link leads somewhere")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
