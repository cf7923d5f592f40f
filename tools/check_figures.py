#!/usr/bin/env python3
"""Comparisons with llama.cpp are with the better of its flash attention off and on (-fa 0 and 1), and show that both were measured.

In docs/numbers/**/*.jsonl every line with llama_cpp_ms names the better setting, the other one's time and the ratio that belongs to the
better. In documents a table that has llama.cpp's time and a ratio also has "its other" or "its other setting" with a figure in every row.
Prints one line per offence. --self-test tries the rules on small examples, and the choice of bench/compare_llama_cpp.py,
compare_perplexity.py and compare_kv_types.py without llama.cpp."""
import argparse
import json
import pathlib
import re
import sys
import types
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent


def check_line(row):
    """What is wrong with one figure."""
    if "llama_cpp_ms" not in row:
        return
    best, other = row["llama_cpp_ms"], row.get("llama_cpp_other_fa_ms")
    if row.get("llama_cpp_fa") not in (0, 1):
        yield "no setting of llama.cpp's attention"
    if other is None:
        yield "llama.cpp's other setting was not measured"
    elif other < best:
        yield "llama.cpp's other setting is the better one"
    if abs(row["ratio"] - best / row["ours_ms"]) > 0.01:
        yield "the ratio is not that of the two times"


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def check_tables(text):
    """(line, problem) of a document's tables."""
    columns = other = None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.startswith("|"):
            columns = other = None
        elif columns is None:
            columns = [re.sub(r" ms$", "", cell) for cell in cells(line)]
            other = None
            if "llama.cpp" in columns and "ratio" in columns:
                other = next((i for i, cell in enumerate(columns) if cell.startswith("its other")), None)
                if other is None:
                    yield number, "a ratio to llama.cpp without its other setting"
        elif other is not None and not set(line) <= set("|-: ") and not re.search(r"\d", cells(line)[other]):
            yield number, "llama.cpp's other setting is empty"


def offences(root):
    for path in sorted((root / "docs/numbers").rglob("*.jsonl")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            row = json.loads(line)
            for problem in check_line(row) if isinstance(row, dict) else ():
                yield f"{path.relative_to(root)}:{number}: {problem}"
    for path in [root / "README.md", root / "CHANGELOG.md", *sorted((root / "docs").rglob("*.md"))]:
        for number, problem in check_tables(path.read_text()):
            yield f"{path.relative_to(root)}:{number}: {problem}"


def test_rules():
    good = {"llama_cpp_ms": 2.0, "llama_cpp_fa": 1, "llama_cpp_other_fa_ms": 3.0, "ours_ms": 1.0, "ratio": 2.0}
    lines = [(good, 0), ({"ours_ms": 1.0}, 0), (good | {"llama_cpp_other_fa_ms": None}, 1), (good | {"llama_cpp_other_fa_ms": 1.9}, 1),
             (good | {"ratio": 3.0}, 1), ({k: v for k, v in good.items() if k != "llama_cpp_fa"}, 1)]
    tables = [("| a | llama.cpp ms | ours ms | ratio |\n| --- | ---: | ---: | ---: |\n| b | 2 | 1 | 2 |\n", [1]),
              ("| a | llama.cpp | its other | ours | ratio |\n| --- | ---: | ---: | ---: | ---: |\n| b | 2 | 3 | 1 | 2 |\n| c | 2 | | 1 | 2 |\n", [4]),
              ("| a | llama.cpp | ours | difference |\n| --- | ---: | ---: | ---: |\n| b | 16.6 | 16.7 | + 0.1 % |\n", [])]
    for row, wanted in lines:
        assert len(list(check_line(row))) == wanted, row
    for text, wanted in tables:
        assert [number for number, _ in check_tables(text)] == wanted, text


def test_scripts():
    """llama.cpp is a stand-in: its two settings take the times given here."""
    sys.path.insert(0, str(ROOT / "bench"))
    with mock.patch.dict(sys.modules, {"llama_cpp": mock.MagicMock(), "numpy": mock.MagicMock()}):
        import compare_kv_types
        import compare_llama_cpp
        import compare_perplexity
    off, on = (types.SimpleNamespace(flash=flash) for flash in (False, True))
    for times, better in (({False: 5.0, True: 9.0}, 0), ({False: 9.0, True: 5.0}, 1), ({False: 5.5, True: 5.0}, 1)):
        cell = compare_llama_cpp.Cell("4 rows @ 0", "vr4", lambda peer, times=times: times[peer.flash])
        for _ in range(2):
            cell.run_theirs([off, on], 1, 3)
        cell.take_ours({"n_tokens": 4, "samples_ms": [2.5] * 6, "percent_of_read": 1, "percent_of_arithmetic": 1})
        line = cell.line()
        assert (line["llama_cpp_fa"], line["llama_cpp_ms"], line["ratio"]) == (better, 5.0, 2.0), line
        assert not list(check_line(line)), line

    args = argparse.Namespace(kv_type="", value_type="", program="specextend", model="m", threads=1)
    for by_setting in ({False: 17.1, True: 17.0}, {False: 17.0, True: 17.1}):
        with mock.patch.object(compare_perplexity, "peer_with", lambda _, flash, by=by_setting: (by[flash], 2040)):
            perplexity, _, flash = compare_perplexity.peer(args)
            assert perplexity == 17.0 and by_setting[flash] == 17.0
    assert compare_perplexity.settings("q8_0") == [True]  # quantised V has no other

    run = mock.Mock(return_value=mock.Mock(stdout='[{"avg_ms": 24.0, "n_tokens": 24}]'))
    peer = mock.Mock(side_effect=lambda model, context, threads, flash, kinds: types.SimpleNamespace(flash=flash))
    took = mock.Mock(side_effect=lambda peer, depth, tokens: 5.0 if not peer.flash else 9.0)
    with mock.patch("subprocess.run", run), mock.patch.object(compare_llama_cpp, "Peer", peer), mock.patch.object(compare_llama_cpp, "peer_decode", took):
        assert compare_kv_types.decode(args, None, "f16", "f16", 64) == (1.0, 5.0)
        assert compare_kv_types.decode(args, None, "q8_0", "q8_0", 64) == (1.0, 9.0)


def main():
    if sys.argv[1:] == ["--self-test"]:
        test_rules()
        test_scripts()
        print("self-test: passed")
        return 0
    found = list(offences(ROOT))
    print("\n".join(found) if found else "figures: every comparison with llama.cpp is with its better setting")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
