#!/usr/bin/env python3
"""Writes tests/text/data/published: short texts with the ids that the publishers' own tokenizers give them, and of each vocabulary the
tokens these texts can reach (development only).

    tools/make_published_ids.py tests/text/data/published

Needs the PyPI packages tiktoken, mistral_common, dashscope, litellm, tokenizers and sentencepiece, which carry the vocabularies: Mistral's
tekken and SentencePiece models (Apache-2.0), OpenAI's o200k (gpt-4o, gpt-oss; MIT), Qwen's (Apache-2.0) and DeepSeek V3's (MIT). Merging
only ever makes substrings of a text, so a vocabulary cut down to them gives the text the same tokens as the whole one; ids are the whole
one's. Of Gemma 3, whose terms forbid more, it writes ids only (gguf, protobuf; tools/fetch_model.py --gemma).
"""
import argparse
import base64
import importlib.util
import json
import pathlib
import sys
import unicodedata

TEXTS = [
    "", " ", "  ", "   ", "\t", "\n", "\n\n", "\n\n\n", " \n  \n", "Hello world", " Hello", "Hello World", "Hello, y'all! How are you?",
    "I'm sure they've said we'LL go; it'S DON'T.", "CamelCaseWords and HTTPServer, iPhone XIII", "1", "12", "123", "1234", "3.14159 2024-11-19 1,000,000",
    "x²+y³=½ Ⅷ ٣٤ ४५", "for (int i = 0; i < n; ++i) {\n\treturn a[i] / 2; // half\n}\n", "    indented\n\n\n        more  \r\n end ", "a//b\\c /// \n/\n",
    "http://a.example/b?c=d&e=f#g", "naïve café, Straße; Übergröße", "nai\u0308ve cafe\u0301", "Привет, мир! Как дела?", "Γειά σου Κόσμε", "你好，世界！今天天气很好。",
    "これはテストです。カタカナと漢字", "안녕하세요 세계", "مرحبا بالعالم", "שלום עולם", "नमस्ते दुनिया", "สวัสดีชาวโลก", "កាន់តែពិសេស",
    "🚀 (normal) 😶‍🌫️ (parts) ✅ 🦙👩‍👩‍👧‍👦", "!!!! ...... ???? ''''''", "'s 'T don't 'Ve", "\u00a0no-break\u3000wide\u2003space", "__init__ snake_case SCREAMING_CASE",
    "ﬁ ﬀ Å ㍍ ｱ 𝔘𝓷𝓲 𐐷", "e.g. $5.00 + 10% = €4,60", "trailing   ", "ends with lines \n\n", "ǅ ǈ titlecase ʰ modifier", "The quick brown fox jumps over the lazy dog.",
]


def data_of(package, path):
    """A file of an installed package, which is not imported: some need half of PyPI for that."""
    return pathlib.Path(importlib.util.find_spec(package).submodule_search_locations[0]) / path


def cut(ranks, words):
    """Of `ranks` (bytes to id, which is the order of merging too) the tokens that are substrings of `words`."""
    pieces = {word[i:j] for word in words for i in range(len(word)) for j in range(i + 1, len(word) + 1)}
    return {piece: ranks[piece] for piece in sorted(pieces & ranks.keys(), key=ranks.get)}


def halves(ranks, token):
    """The two tokens that `token` is merged from: what merging by rank leaves of it when its own merge is not there yet."""
    parts = [token[i:i + 1] for i in range(len(token))]
    while len(parts) > 2:
        found = [(ranks[parts[i] + parts[i + 1]], i) for i in range(len(parts) - 1) if ranks.get(parts[i] + parts[i + 1], ranks[token]) < ranks[token]]
        if not found:
            return None  # never reached by merging, only as a whole word
        i = min(found)[1]
        parts[i:i + 2] = [parts[i] + parts[i + 1]]
    return parts


def alphabet():
    """GPT-2's printable character for each byte."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in kept]
    return {b: chr(b) for b in kept} | {b: chr(256 + i) for i, b in enumerate(others)}


def byte_level(pre, ranks, encode, first=0, normal=str):
    """GGUF's arrays; ids are those of the model, which has `first` special tokens before the vocabulary's."""
    letters = alphabet()
    kept = cut(ranks, [normal(text).encode() for text in TEXTS])
    show = lambda token: "".join(letters[b] for b in token)
    merges = [pair for token in kept if len(token) > 1 and (pair := halves(ranks, token))]
    return {"model": "gpt2", "pre": pre, "tokens": [show(token) for token in kept], "merges": [" ".join(map(show, pair)) for pair in merges],
            "published": [first + rank for rank in kept.values()], "cases": [[text, [first + i for i in encode(text)]] for text in TEXTS]}


def tekken():
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer
    path = data_of("mistral_common", "data/tekken_240911.json")
    data = json.loads(path.read_text())
    config = data["config"]
    special = config["default_num_special_tokens"]
    ranks = {base64.b64decode(t["token_bytes"]): t["rank"] for t in data["vocab"][:config["default_vocab_size"] - special]}
    reference = Tekkenizer.from_file(str(path))
    return byte_level("tekken", ranks, lambda text: [i - special for i in reference.encode(text, bos=False, eos=False)], special)


def tiktoken_ranks(path):
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in path.read_bytes().splitlines() if line)}


def openai(pre, encoding, name):
    import tiktoken
    import tiktoken.load
    import tiktoken_ext.openai_public
    ranks = tiktoken_ranks(data_of("litellm", f"litellm_core_utils/tokenizers/{name}"))
    tiktoken_ext.openai_public.load_tiktoken_bpe = lambda *_, **__: ranks  # the package would fetch it
    reference = tiktoken.Encoding(**getattr(tiktoken_ext.openai_public, encoding)())
    return byte_level(pre, ranks, reference.encode_ordinary)


def qwen():
    from dashscope.tokenizers.qwen_tokenizer import QwenTokenizer
    path = data_of("dashscope", "resources/qwen.tiktoken")
    return byte_level("qwen2", tiktoken_ranks(path), QwenTokenizer(str(path)).encode, normal=lambda text: unicodedata.normalize("NFC", text))


def deepseek():
    from tokenizers import Tokenizer
    path = data_of("litellm", "litellm_core_utils/tokenizers/deepseek_tokenizer.json")
    data, reference = json.loads(path.read_text()), Tokenizer.from_file(str(path))
    back = {letter: byte for byte, letter in alphabet().items()}
    ids = {bytes(back[c] for c in token): i for token, i in data["model"]["vocab"].items() if all(c in back for c in token)}
    kept = cut(ids, [text.encode() for text in TEXTS])
    letters = alphabet()
    shown = ["".join(letters[b] for b in token) for token in kept]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in data["model"]["merges"]]
    known = set(shown)
    return {"model": "gpt2", "pre": "deepseek-v3", "tokens": shown, "merges": [m for m in merges if m.replace(" ", "") in known],
            "published": list(kept.values()), "cases": [[text, reference.encode(text, add_special_tokens=False).ids] for text in TEXTS]}


def sentencepiece(name):
    import sentencepiece as spm
    model = spm.SentencePieceProcessor(model_file=str(data_of("mistral_common", f"data/{name}")))
    ids = {model.id_to_piece(i): i for i in range(model.vocab_size()) if not model.is_control(i)}
    words = ["▁" + text.replace(" ", "▁") for text in TEXTS]
    pieces = {word[i:j] for word in words for i in range(len(word)) for j in range(i + 1, len(word) + 1)}
    kept = sorted(i for piece, i in ids.items() if piece in pieces or model.is_byte(i) or model.is_unknown(i))
    return {"model": "llama", "tokens": [model.id_to_piece(i) for i in kept], "scores": [model.get_score(i) for i in kept],
            "types": [6 if model.is_byte(i) else 2 if model.is_unknown(i) else 1 for i in kept], "unk": kept.index(model.unk_id()), "published": kept,
            "cases": [[text, model.encode(text)] for text in TEXTS]}


def gemma():
    """Google's own SentencePiece over the vocabulary in the GGUF file."""
    import fetch_model
    import gguf
    import sentencepiece as spm
    from sentencepiece import sentencepiece_model_pb2 as pb
    fields = gguf.GGUFReader(fetch_model.models_folder() / fetch_model.GEMMA.name).fields
    tokens, scores, types = (fields["tokenizer.ggml." + key].contents() for key in ("tokens", "scores", "token_type"))
    proto = pb.ModelProto()
    for token, score, kind in zip(tokens, scores, types):
        proto.pieces.add(piece=token.replace(" ", "▁"), score=score, type=kind)  # SentencePiece's numbers; runs of spaces are user-defined
    spec = proto.trainer_spec
    spec.model_type, spec.byte_fallback, spec.vocab_size = pb.TrainerSpec.BPE, True, len(tokens)
    spec.pad_id, spec.eos_id, spec.bos_id, spec.unk_id = 0, 1, 2, 3
    spec.pad_piece, spec.eos_piece, spec.bos_piece, spec.unk_piece = tokens[:4]
    rules = proto.normalizer_spec
    rules.name, rules.add_dummy_prefix, rules.remove_extra_whitespaces, rules.escape_whitespaces = "identity", False, False, True
    model = spm.SentencePieceProcessor(model_proto=proto.SerializeToString())
    return {"cases": [[text, model.encode(text)] for text in TEXTS]}


MAKERS = {
    "tekken": tekken,
    "gpt-4o": lambda: openai("gpt-4o", "o200k_base", "fb374d419588a4632f3f557e76b4b70aebbca790"),
    "qwen2": qwen,
    "deepseek-v3": deepseek,
    "mistral-v3": lambda: sentencepiece("mistral_instruct_tokenizer_240323.model.v3"),
    "gemma3": gemma,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", choices=MAKERS)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, make in MAKERS.items():
        if args.only not in (None, name):
            continue
        data = make()
        path = args.folder / f"{name}.json"
        path.write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
        print(f"{path}: {len(data.get('tokens', []))} tokens, {len(data['cases'])} texts, {path.stat().st_size} bytes")


if __name__ == "__main__":
    sys.exit(main())
