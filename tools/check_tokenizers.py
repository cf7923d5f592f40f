#!/usr/bin/env python3
"""Compares our tokenizers with the Hugging Face `tokenizers` package, id by id (development only).

Needs PyPI tokenizers and gguf. The driver is the program tokenizer_driver of the build folder.

  tools/check_tokenizers.py --driver build/tests/text/tokenizer_driver [--data DIR] [--gguf FILE ...] [--lines N]
  tools/check_tokenizers.py --golden tests/text/data     writes the small golden files of the unit tests

--data: a folder whose text files (*.jsonl, *.raw, *.txt) feed training and comparison. --gguf: vocabularies; with FILE.inp
and FILE.out beside them these are compared, and byte-level ones are rebuilt with `tokenizers` and compared on the texts.
"""
import argparse
import glob
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL
DEEPSEEK3 = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
             r"| ?[\p{P}\p{S}]+[\r\n]*" + TAIL)
HAN = "[一-龥ࠀ-一가-\ud7ff]+"
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + TAIL)
LETTERS = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + CONTRACTIONS + "?"
           r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + CONTRACTIONS + "?")
GPT4O = LETTERS + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + TAIL
SEED = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+" + TAIL
QWEN35 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + TAIL


CASED = (  # DeepSeek LLM's letters, code points in hexadecimal
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C 38E-3A1 3A3-3F5 "
    "3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 "
    "1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC "
    "1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D "
    "212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B "
    "A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB "
    "10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943")
CASED = "".join("-".join(chr(int(code, 16)) for code in part.split("-")) for part in CASED.split())


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def byte_level(*steps, use_regex=False, add_prefix_space=False):
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space,
                                                                     use_regex=use_regex)])


# Names as GGUF writes them, and the published pipelines they stand for.
BYTE_LEVEL = {
    "gpt-2": lambda: byte_level(use_regex=True),
    "smollm": lambda: byte_level(pre_tokenizers.Digits(individual_digits=True), use_regex=True),
    "starcoder": lambda: byte_level(pre_tokenizers.Digits(individual_digits=True), use_regex=True),
    "refact": lambda: byte_level(pre_tokenizers.Digits(individual_digits=True), use_regex=True),
    "mpt": lambda: byte_level(use_regex=True),
    "llama-bpe": lambda: byte_level(split(LLAMA3)),
    "qwen2": lambda: byte_level(split(QWEN2)),
    "deepseek-coder": lambda: byte_level(split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split(HAN),
                                         pre_tokenizers.Digits(individual_digits=True)),
    "deepseek-llm": lambda: byte_level(split(r"[\r\n]"), split(rf"\s?[{CASED}]+"), split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
                                       split(r"\s+$"), split(HAN), split(r"\p{N}+")),
    "deepseek-v3": lambda: byte_level(split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"), split(DEEPSEEK3)),
    "tekken": lambda: byte_level(split(TEKKEN)),
    "gpt-4o": lambda: byte_level(split(GPT4O)),
    "tiny_aya": lambda: byte_level(split(r"\d{1,3}(?=(?:\d{3})*\b)"), split(GPT4O)),
    "seed-coder": lambda: byte_level(split(SEED)),
    "qwen35": lambda: byte_level(split(QWEN35)),
    "glm4": lambda: byte_level(split(LLAMA3)),
    "exaone4": lambda: byte_level(use_regex=True),
    "command-r": lambda: byte_level(pre_tokenizers.Digits(individual_digits=True), use_regex=True),
}


NFC = ("qwen2", "qwen35", "command-r", "olmo", "hunyuan")
WHOLE_WORDS = ("llama-bpe", "smaug-bpe", "glm4", "hunyuan", "tekken")  # a word that is a token is not merged together


# ---------------------------------------------------------------------------------------------------------------- texts

POOLS = [
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789", " ", " \t\n\r\u00a0\u2003\u3000\u0085\u180e\u2028",
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "äöüßéèñçÅøłŠİıſǅ", "\u0301\u0308\u0323\u0327\u0338\u3099\u0345",
    "абвгдежзийклмноп", "αβγδεςΣΐΰ", "漢字中文測試日本語", "ひらがなカタカナ゛", "한국어조선말각", "ᄀᄁ가각ᅡᆨ", "مرحباالعالم", "שלום",
    "हिन्दीक़ड़", "ไทยกำ", "ក្មែរ", "😀😁🚀🦙👩‍👩‍👧‍👦🏳️‍🌈❤️👍🏽", "\u200b\u200c\u200d\u200e\ufeff\ufe0f", "\x00\x01\x07\x1b\x7f\x80\x9f",
    "½²³¹Ⅷ①৩४٣", "▁Ġ▁▁", "ﬁﬀ豈羅Å㍍ｱ", "𝔘𝓷𝓲𐐷𞤀🀄", "\ue000\ufffd\uffff\U0010ffff",
]
PHRASES = ["'s", "'LL", "I'Ve", "it's", " don't", "<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<0x0A>", "   ", "\n\n",
           "\r\n", " \n ", "e\u0301", "ſ", "'ſ", "1,234.56", "http://a.b/c?d=e", "foo_bar", "__init__", "...", "???!!", "[MASK]",
           "<extra>", "\u1100\u1161\u11a8", "a" * 40, " " * 17, "=" * 33, "ab" * 30]


def random_text(rng):
    parts = []
    for _ in range(rng.randint(1, 12)):
        kind = rng.random()
        if kind < 0.25:
            parts.append(rng.choice(PHRASES))
        elif kind < 0.85:
            pool = rng.choice(POOLS)
            parts.append("".join(rng.choice(pool) for _ in range(rng.randint(1, 8))))
        elif kind < 0.95:
            parts.append(rng.choice(["the", " The", " and", "Hello", " world", "\nfoo", "bar ", " of", "tokenization"]))
        else:
            char = chr(rng.randrange(0x110000))  # younger than the Unicode of all three sides: they may disagree
            parts.append(char if unicodedata.category(char) not in ("Cs", "Cn") else "?")
    return "".join(parts)


def file_lines(folder, limit):
    lines = []
    for path in sorted(glob.glob(os.path.join(folder, "**", "*"), recursive=True)):
        if path.endswith(".jsonl"):
            for row in open(path, encoding="utf-8"):
                for value in json.loads(row).values():
                    for text in value if isinstance(value, list) else [value]:
                        if isinstance(text, str):
                            lines += [text] + text.split("\n")
        elif path.endswith((".raw", ".txt")):
            lines += open(path, encoding="utf-8").read().split("\n")
    lines = [line for line in lines if line]
    if len(lines) > limit:
        whole = [line for line in lines if len(line) > 20000][:5]
        lines = whole + random.Random(1).sample(lines, limit)
    return lines


# --------------------------------------------------------------------------------------------------------------- driver

class Driver:
    def __init__(self, program, vocabulary):
        self.command = [program, vocabulary]

    def ask(self, requests):
        text = "".join(json.dumps(request) + "\n" for request in requests)
        done = subprocess.run(self.command, input=text.encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{self.command}: {done.stderr.decode(errors='replace')}")
        return [json.loads(line) for line in done.stdout.splitlines()]


class Tally:
    def __init__(self):
        self.failed = 0

    def report(self, name, what, total, wrong, seconds=None):
        self.failed += len(wrong)
        extra = f" ({seconds:.1f} s)" if seconds else ""
        print(f"{'ok  ' if not wrong else 'FAIL'} {name:34} {what:22} {total - len(wrong)}/{total}{extra}", flush=True)
        for example in wrong[:3]:
            print("     ", *[repr(x)[:300] for x in example], sep="\n        ")


def compare(tally, driver, reference, name, texts, rng, lossless=False, added=frozenset()):
    """Ids with and without special tokens, decoding of them and of random ids."""
    start = time.time()
    for special in (False, True):
        ours = driver.ask([{"text": t, "special": special, "parse": True} for t in texts])
        theirs = [e.ids for e in reference.encode_batch(texts, add_special_tokens=special)]
        wrong = [(t, a, b) for t, a, b in zip(texts, ours, theirs) if a != b]
        tally.report(name, "ids" + ("+special" if special else ""), len(texts), wrong, time.time() - start)
    size = reference.get_vocab_size(with_added_tokens=True)
    sequences = theirs[:3000] + [[rng.randrange(size) for _ in range(rng.randint(1, 12))] for _ in range(2000)]
    for skip in (False, True):
        ours = driver.ask([{"ids": s, "skip": skip} for s in sequences])
        wrong = []
        for s, text in zip(sequences, ours):
            expected = reference.decode(s, skip_special_tokens=skip)
            # A run of byte-fallback tokens that is not UTF-8 prints one U+FFFD per byte there, per ill-formed part here.
            # An added token such as "ü" is text here, and a byte of GPT-2's alphabet to that decoder.
            if "\ufffd" in expected and added.intersection(s):
                continue
            if text != expected and not ("\ufffd" in expected and "\ufffd" in text and b"ByteFallback" in reference.to_str().encode()):
                wrong.append((s, text, expected))
        tally.report(name, "decode" + (" skip" if skip else ""), len(sequences), wrong)
    if lossless:
        ids = driver.ask([{"text": t, "special": False, "parse": True} for t in texts])
        back = driver.ask([{"ids": i, "skip": False} for i in ids])
        # Some vocabularies lack a few bytes; then the reference cannot give the text back either.
        wrong = [(a, b) for a, b, i in zip(texts, back, ids) if a != b and reference.decode(i, skip_special_tokens=False) == a]
        lost = sum(a != b for a, b in zip(texts, back)) - len(wrong)
        tally.report(name, f"lossless ({lost} cannot)", len(texts), wrong)


# ------------------------------------------------------------------------------------------------------------ GGUF files

def gguf_arrays(path):
    import gguf
    fields = gguf.GGUFReader(path).fields
    names = {"model": "model", "pre": "pre", "tokens": "tokens", "scores": "scores", "token_type": "types",
             "merges": "merges", "bos_token_id": "bos", "eos_token_id": "eos", "unknown_token_id": "unk",
             "add_bos_token": "add_bos", "add_eos_token": "add_eos", "add_space_prefix": "add_space_prefix"}
    found = {}
    for key, name in names.items():
        field = fields.get("tokenizer.ggml." + key)
        if field is not None:
            value = field.contents()
            found[name] = int(value) if isinstance(value, bool) else value
    return found


def rebuild(arrays):
    """The `tokenizers` object that a byte-level GGUF vocabulary came from."""
    vocab = {t: i for i, t in enumerate(arrays["tokens"])}
    merges = [tuple(m.split(" ")) for m in arrays["merges"]]
    pre = arrays.get("pre", "gpt-2")
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre in WHOLE_WORDS))
    tokenizer.pre_tokenizer = BYTE_LEVEL[pre]()
    if pre in NFC:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    special = [t for t, k in zip(arrays["tokens"], arrays["types"]) if k == 3]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    # Tokens that users have added; some are letters that no merge makes.
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t, k in zip(arrays["tokens"], arrays["types"]) if k == 4])
    add_bos = arrays.get("add_bos", pre == "llama-bpe")
    if add_bos:
        bos = arrays["tokens"][arrays["bos"]]
        tokenizer.post_processor = processors.TemplateProcessing(single=[bos, "$A"], special_tokens=[(bos, arrays["bos"])])
    return tokenizer


def check_gguf(tally, program, path, texts, rng, folder):
    name = os.path.basename(path)
    arrays = gguf_arrays(path)
    if arrays["model"] not in ("gpt2", "llama"):
        print(f"--   {name:34} model '{arrays['model']}' is not supported", flush=True)
        return
    dump = os.path.join(folder, name + ".json")
    json.dump(arrays, open(dump, "w"))
    driver = Driver(program, dump)
    if os.path.exists(path + ".inp"):
        inputs = open(path + ".inp", encoding="utf-8", newline="").read().split("\n__ggml_vocab_test__\n")
        expected = [[int(x) for x in line.split()] for line in open(path + ".out").read().split("\n")]
        expected = expected[:len(inputs)]
        ours = driver.ask([{"text": t, "special": False, "parse": False} for t in inputs])
        tally.report(name, ".inp/.out", len(inputs), [(t, a, b) for t, a, b in zip(inputs, ours, expected) if a != b])
    if arrays["model"] == "gpt2" and arrays.get("pre") in BYTE_LEVEL:
        added = frozenset(i for i, kind in enumerate(arrays["types"]) if kind == 4)
        compare(tally, driver, rebuild(arrays), name, texts, rng, lossless=True, added=added)
    elif arrays["model"] == "llama":
        texts = [t for t in texts if "▁" not in t]  # shown as a space
        ids = driver.ask([{"text": t, "special": False, "parse": False} for t in texts])
        back = driver.ask([{"ids": i, "skip": False} for i in ids])
        tally.report(name, "lossless", len(texts), [(a, b) for a, b in zip(texts, back) if a != b])


# ---------------------------------------------------------------------------------------------------- trained vocabularies

def train_bpe(pre, texts, size, normalizer=None, alphabet=True, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre
    if normalizer:
        tokenizer.normalizer = normalizer
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] * model.get("byte_fallback", False)
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else []))
    return tokenizer


def strip_byte_specials(tokenizer):
    """Training puts <0xNN> into added_tokens; published files have them in the model's vocabulary only."""
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if not t["content"].startswith("<0x")]
    return data


def with_template(data, prefix=("<s>",), suffix=()):
    ids = {t["content"]: t["id"] for t in data["added_tokens"]}
    piece = lambda t: {"SpecialToken": {"id": t, "type_id": 0}}
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [piece(t) for t in prefix] + [{"Sequence": {"id": "A", "type_id": 0}}] + [piece(t) for t in suffix],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in (*prefix, *suffix)}}
    return data


BYTE_DECODER = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
LLAMA_DECODER = {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}


def byte_level_cases(texts, size):
    for name, make in BYTE_LEVEL.items():
        if name in ("starcoder", "refact", "mpt"):
            continue
        tokenizer = train_bpe(make(), texts, size, normalizers.NFC() if name in NFC else None,
                              ignore_merges=name == "llama-bpe")
        tokenizer.decoder = decoders.ByteLevel()
        data = json.loads(tokenizer.to_str())
        yield name, with_template(data) if name == "llama-bpe" else data, name not in NFC
    data = json.loads(train_bpe(byte_level(use_regex=True, add_prefix_space=True), texts, size).to_str())
    data["decoder"] = BYTE_DECODER
    yield "gpt-2 prefix space", data, False
    falcon = pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False),
                                      pre_tokenizers.Digits(individual_digits=False), split("[0-9][0-9][0-9]")])
    data = json.loads(train_bpe(falcon, texts, size).to_str())
    data["decoder"] = BYTE_DECODER
    yield "falcon (bytes in the middle)", data, True
    added = json.loads(json.dumps(data))
    top = max(max(added["model"]["vocab"].values()), *(t["id"] for t in added["added_tokens"])) + 1
    for text, flags in [("[MASK]", {"lstrip": True, "special": True}), ("<extra>", {"rstrip": True}),
                        ("foo", {"single_word": True}), ("the", {"normalized": True}),
                        ("<|im_start|>", {"special": True}), ("  ", {})]:
        known = added["model"]["vocab"].get(text)
        added["added_tokens"].append({"id": top if known is None else known, "content": text, "single_word": False,
                                      "lstrip": False, "rstrip": False, "normalized": False, "special": False, **flags})
        top += known is None
    yield "added tokens", added, False


def behavior_cases(texts, size):
    for behavior in ("isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in (False, True):
            pre = pre_tokenizers.Sequence([split(r"[aeiou\s]+|\p{N}", behavior, invert)])
            data = json.loads(train_bpe(pre, texts, size, alphabet=False, unk_token="<unk>").to_str())
            data["decoder"] = {"type": "Fuse"}
            yield f"split {behavior}{' inverted' if invert else ''}", data, False
    for name, pre in {"whitespace": pre_tokenizers.Whitespace(), "whitespace split": pre_tokenizers.WhitespaceSplit(),
                      "punctuation": pre_tokenizers.Punctuation(), "string split": pre_tokenizers.Split(".", "merged_with_next")}.items():
        for fuse in (False, True):
            data = json.loads(train_bpe(pre, texts, size, normalizers.Sequence([normalizers.Lowercase(), normalizers.Strip()]),
                                        alphabet=False, unk_token="<unk>", fuse_unk=fuse).to_str())
            yield name + (" fuse_unk" if fuse else ""), data, False


def sentencepiece_cases(texts, size):
    prepend = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    short = [t[:300] for t in texts]
    tokenizer = train_bpe(pre_tokenizers.Split("▁", "merged_with_next"), short, size, prepend, False, unk_token="<unk>",
                          fuse_unk=True, byte_fallback=True)
    data = strip_byte_specials(tokenizer)
    data["pre_tokenizer"], data["decoder"] = None, LLAMA_DECODER
    yield "llama-2 legacy", with_template(data), False
    pairs = json.loads(json.dumps(data))
    pairs["model"]["merges"] = [" ".join(m) if isinstance(m, list) else m for m in pairs["model"]["merges"]]
    yield "llama-2 merges as strings", with_template(pairs, ("<s>",), ("</s>",)), False
    for scheme in ("always", "first", "never"):
        for whole in (False, True):
            modern = json.loads(json.dumps(data))
            modern["normalizer"] = None
            modern["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": not whole}
            if whole:
                modern["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
                modern["model"]["byte_fallback"] = False
            yield f"metaspace {scheme}{' whole' if whole else ''}", modern, False
    for fallback in (False, True):
        unigram = Tokenizer(models.Unigram())
        unigram.pre_tokenizer = pre_tokenizers.Metaspace()
        unigram.decoder = decoders.Metaspace()
        special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] * fallback
        unigram.train_from_iterator(short, trainers.UnigramTrainer(
            vocab_size=size, unk_token="<unk>", special_tokens=special, show_progress=False))
        data = strip_byte_specials(unigram)
        data["model"]["byte_fallback"] = fallback
        if fallback:
            data["decoder"] = LLAMA_DECODER
        yield "unigram" + (" byte_fallback" if fallback else ""), with_template(data), False


def all_cases(texts, size):
    yield from byte_level_cases(texts, size)
    yield from behavior_cases(texts, size)
    yield from sentencepiece_cases(texts, size)


# ----------------------------------------------------------------------------------------------------------------- main

def timing(driver, texts):
    samples = {"8K-token document": max(texts, key=len)[:36000], "1 MB of letters": "abcdefghij" * 100000, "1 MB of spaces": " " * 1000000,
               "1 MB of one letter": "a" * 1000000, "1 MB of digits": "7" * 1000000, "1 MB of dashes": "-" * 1000000}
    for name, text in samples.items():
        got = min(driver.ask([{"text": text, "time": True}] * 5), key=lambda r: r["ms"])
        print(f"     {name:24} {got['tokens']:8} tokens {got['ms']:10.2f} ms", flush=True)


def check(args):
    rng = random.Random(args.seed)
    tally = Tally()
    lines = file_lines(args.data, args.lines) if args.data else []
    noise = [random_text(rng) for _ in range(args.random)]
    texts = lines + noise
    folder = tempfile.mkdtemp()
    for path in args.gguf:
        check_gguf(tally, args.driver, path, texts, rng, folder)
        timing(Driver(args.driver, os.path.join(folder, os.path.basename(path) + ".json")), texts)
    training = [t[:2000] for t in lines[:4000]] + noise[:2000]
    some = noise + lines[:5000]
    for name, data, lossless in all_cases(training, 1500):
        if args.only and args.only not in name:
            continue
        path = os.path.join(folder, "tokenizer.json")
        json.dump(data, open(path, "w"))
        reference = Tokenizer.from_str(json.dumps(data))
        if data["model"]["type"] == "Unigram":  # it reads some scores one bit off, which decides ties: give us what it read
            open(path, "w").write(reference.to_str())
        compare(tally, Driver(args.driver, path), reference, name, some, rng, lossless)
    print("all equal" if not tally.failed else f"{tally.failed} differences")
    return 1 if tally.failed else 0


GOLDEN = {"gpt-2", "llama-bpe", "qwen2", "deepseek-v3", "added tokens", "split merged_with_next", "whitespace fuse_unk",
          "llama-2 legacy", "metaspace first", "metaspace always whole", "unigram", "unigram byte_fallback"}


def write_golden(folder):
    """Small vocabularies trained on generated text, with texts, ids and decoded texts."""
    rng = random.Random(7)
    words = ["the", "token", "speculation", "never", "changes", "output", "draft", "tree", "verify", "it's", "don't", "2024",
             "3.14", "naïve", "日本", "Привет", "x_1", "()", "cache"]
    training = [" ".join(rng.choice(words) for _ in range(20)) + rng.choice([".", "!\n", "\n\n", " "]) for _ in range(300)]
    texts = ["", " ", "the draft tree", "  never  changes\n\noutput 12345", "it's DON'T 'LL", "e\u0301 naïve \u1100\u1161\u11a8",
             "👩‍👩‍👧 日本語 Привет", "<s>the</s> token"] + [random_text(rng) for _ in range(14)]
    for name, data, _ in all_cases(training, 330):
        if name not in GOLDEN:
            continue
        reference = Tokenizer.from_str(json.dumps(data))
        size = reference.get_vocab_size(with_added_tokens=True)
        rows = [{"text": t, "ids": reference.encode(t, add_special_tokens=False).ids, "special": reference.encode(t).ids}
                for t in texts]
        sequences = [[rng.randrange(size) for _ in range(rng.randint(1, 8))] for _ in range(12)]
        shown = [{"ids": s, "text": reference.decode(s, skip_special_tokens=False)} for s in sequences]
        if "ByteFallback" in json.dumps(data):
            shown = [row for row in shown if "\ufffd" not in row["text"]]
        path = os.path.join(folder, name.replace(" ", "_") + ".json")
        json.dump({"tokenizer": data, "encode": rows, "decode": shown}, open(path, "w", encoding="utf-8"), ensure_ascii=False,
                  separators=(",", ":"))
        print(path, os.path.getsize(path))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver")
    parser.add_argument("--data")
    parser.add_argument("--gguf", nargs="*", default=[])
    parser.add_argument("--lines", type=int, default=20000)
    parser.add_argument("--random", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--golden")
    args = parser.parse_args()
    if args.golden:
        return write_golden(args.golden)
    if not args.driver:
        parser.error("--driver is needed")
    return check(args)


if __name__ == "__main__":
    sys.exit(main())
