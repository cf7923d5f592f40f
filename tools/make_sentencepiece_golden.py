#!/usr/bin/env python3
"""Makes tests/text/data/sentencepiece: tiny models trained with the `sentencepiece` package, and the ids and texts it gives.

    python3 -m venv venv && venv/bin/pip install sentencepiece && venv/bin/python tools/make_sentencepiece_golden.py
"""
import json
import os
import random
import tempfile

import sentencepiece

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "text", "data", "sentencepiece")
WORDS = """the a of and to in is it was that this river stone small light water house long short green red old new day night
walk walked walking talk talked talking speak speaks speaking stream streams streaming token tokens draft drafts model models
über straße naïve café déjà 日本 中文 слово дом fish fishes 12 345 2024 x=1; (yes) "no" it's don't""".split()
RULES = [("\uff21", "A"), ("\uff22", "B"), ("\ufb01", "fi"), ("\u3000", " "), ("\u00a0", " "), ("\u200b", ""), ("e\u0301", "\u00e9"), ("\u2026", "...")]
COMMON = {"character_coverage": 1.0, "num_threads": 1, "hard_vocab_limit": False, "max_sentencepiece_length": 12}
MODELS = {
    # As Llama 2 was made.
    "llama": {"model_type": "bpe", "vocab_size": 480, "byte_fallback": True, "normalization_rule_name": "identity",
              "remove_extra_whitespaces": False, "allow_whitespace_only_pieces": True, "split_digits": True},
    # No bytes: what is not known is <unk>. Its own pieces, characters replaced, spaces removed.
    "bpe": {"model_type": "bpe", "vocab_size": 260, "user_defined_symbols": ["<sep>", "fi"], "control_symbols": ["<ctl>"], "rules": True},
    "unigram": {"model_type": "unigram", "vocab_size": 200, "user_defined_symbols": ["<sep>"], "rules": True},
    "unigram_bytes": {"model_type": "unigram", "vocab_size": 440, "byte_fallback": True, "normalization_rule_name": "identity",
                      "remove_extra_whitespaces": False, "add_dummy_prefix": False},
}


def texts(draw):
    fixed = ["", " ", "  ", "a", " a", "a ", "  two  spaces  ", "the river", "\n", "tab\tnew\nline", "über straße", "日本語のテキスト", "emoji 😀👩‍👩‍👧 x",
             "\uff21\uff22 o\ufb01\ufb01x", "cafe\u0301 cafe\u0308", "a\u3000b\u00a0 c", "\u200b", " \u200b a\u200bb", "…", "a<sep>b", "a <sep> b", "<sep><sep>fi<sep>",
             "<ctl>", "<s>", "a<s>b</s>", "<unk>", "=" * 37, "a" * 100, "walk " * 20, "▁a ▁", "жжж ж", "q" * 9 + "日" * 5, "<0x41>", "it's \"12345\" (yes);"]
    pieces = WORDS + [" ", "  ", "\n", "é", "e\u0301", "\uff21", "\ufb01", "ß", "😀", "zzz", "日", "<sep>", "fi", "..", "=", "00"]
    return fixed + ["".join(draw.choice(pieces) + draw.choice(["", " ", " "]) for _ in range(draw.randrange(1, 12))) for _ in range(60)]


def main():
    os.makedirs(FOLDER, exist_ok=True)
    draw = random.Random(5)
    corpus = [" ".join(draw.choice(WORDS) for _ in range(draw.randrange(3, 12))) for _ in range(400)]
    golden = {}
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # the models keep the names of these files
        rules = "rules.tsv"
        with open(rules, "w", encoding="utf-8") as out:
            for source, target in RULES:
                points = " ".join(f"{ord(c):X}" for c in source), " ".join(f"{ord(c):X}" for c in target)
                out.write("\t".join(points) + "\n")
        for name, settings in MODELS.items():
            settings = dict(settings)
            if settings.pop("rules", False):
                settings["normalization_rule_tsv"] = rules
            sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus), model_prefix=name, minloglevel=2, **COMMON, **settings)
            with open(name + ".model", "rb") as made, open(os.path.join(FOLDER, name + ".model"), "wb") as kept:
                kept.write(made.read())
            model = sentencepiece.SentencePieceProcessor(model_file=name + ".model")
            cases = []
            for text in texts(random.Random(7)):
                ids = model.encode(text)
                cases.append({"text": text, "ids": ids, "decoded": model.decode(ids)})
            golden[name] = {"size": model.get_piece_size(), "cases": cases}
    with open(os.path.join(FOLDER, "golden.json"), "w", encoding="utf-8") as out:
        json.dump(golden, out, ensure_ascii=True, indent=0)


if __name__ == "__main__":
    main()
