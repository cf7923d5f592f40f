"""The pieces that pre-tokenisers make, by the names of llama.cpp's table: ours against `tokenizers` (Oniguruma)."""
import re
import unicodedata

from vocabularies import sources

CONTRACTIONS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
PUBLISHED_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
MARKED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+" + PUBLISHED_CONTRACTIONS + "?"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*" + PUBLISHED_CONTRACTIONS + "?")
# Patterns that llama.cpp replaces by code of its own.
OWN = {"kimi-k2": [r"\p{Han}+|" + MARKED + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]}
# The published tokenizers normalise first, llama.cpp does not.
NFC = {"qwen2", "deepseek-r1-qwen", "kormo", "megrez", "f2llmv2", "qwen35", "command-r", "olmo", "hunyuan"}
# Not supported: names whose tokens are no bytes; and those of which only llama.cpp's own form is known, which cannot be the published one.
LEFT_OUT = {"gemma4", "granite-embed-multi-311m", "sarvam-moe", "whitespace", "afmoe", "granite-embed-multi-97m"}


def string_of(literal):
    """The value of a C++ string literal."""
    return re.sub(r"\\(.)", lambda m: {"r": "\r", "n": "\n", "t": "\t"}.get(m.group(1), m.group(1)), literal, flags=re.S)


def published_form(pattern):
    """Undoes what llama.cpp does for std::regex, where it does not note the original."""
    return pattern.replace(CONTRACTIONS, PUBLISHED_CONTRACTIONS)


def table():
    """Names with their patterns, read from llama.cpp's source."""
    source = (sources.fetch("llama.cpp") / "src" / "llama-vocab.cpp").read_text()
    types = {}
    for condition, kind in re.findall(r"\(((?:\s*tokenizer_pre == \"[^\"]+\"\s*(?:\|\|)?)+)\)\s*\{\s*pre_type = LLAMA_VOCAB_PRE_TYPE_(\w+);", source):
        types.update(dict.fromkeys(re.findall(r'"([^"]+)"', condition), kind))
    patterns, labels = {}, []
    body = source[source.index("switch (vocab.get_pre_type())"):]
    for line in body[:body.index("std::vector<std::string> regex_exprs;")].splitlines():
        line = line.strip()
        if found := re.match(r"case LLAMA_VOCAB_PRE_TYPE_(\w+):|default:", line):
            labels = labels if labels and not patterns.get(labels[0]) else []
            labels.append(found.group(1) or "DEFAULT")
        elif found := re.match(r'(// *(?:original regex from tokenizer.json: *)?)?"(.*)",?\s*(?://.*)?$', line):
            for label in labels:
                patterns.setdefault(label, []).append((bool(found.group(1)), string_of(found.group(2))))
    return {name: patterns[kind] for name, kind in types.items()}


def chosen(found):
    """Where a comment holds the original of a pattern, the original."""
    out, originals = [], []
    for commented, pattern in found:
        if commented:
            originals.append(pattern)
        else:
            out.append(originals.pop() if originals else published_form(pattern))
    return out


def compare(report, args, texts):
    from check_tokenizers import Driver, split
    from tokenizers import pre_tokenizers
    for name, found in sorted(table().items()):
        if args.only and args.only not in name:
            continue
        if name in LEFT_OUT:
            print(f"{name:26} not supported")
            continue
        reference = pre_tokenizers.Sequence([split(pattern) for pattern in OWN.get(name, chosen(found))])
        normal = (lambda text: unicodedata.normalize("NFC", text)) if name in NFC else str
        ours = Driver(args.driver, "--pre").ask([{"pre": name, "text": text} for text in texts])
        theirs = [[piece for piece, _ in reference.pre_tokenize_str(normal(text))] for text in texts]
        if ours[0] is None:
            print(f"{name:26} is missing")
            report.failed += 1
            continue
        report.row(name, "pieces", len(texts), [row for row in zip(texts, ours, theirs) if row[1] != row[2]])
