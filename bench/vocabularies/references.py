"""The vocabularies that bench/compare_vocabularies.py knows: what our tokenizer is given, and who gives the reference ids."""
import ast
import base64
import dataclasses
import hashlib
import json
import pathlib
import re
import sys
import typing
import unicodedata

from vocabularies import sources

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import check_tokenizers  # noqa: E402
import make_published_ids  # noqa: E402


@dataclasses.dataclass
class Vocabulary:
    name: str
    by: str  # the reference implementation
    ours: object  # GGUF's arrays, or the path of a file
    encode: typing.Callable  # text to ids, without special tokens
    first: int = 0  # our id of the reference's id 0
    takes: typing.Callable = lambda text: True  # texts that the reference can be asked about


def all_merges(ranks):
    """Every way to put a token together from two others, in the order of what they make: what tokenizer.json files that were
    made from tiktoken's list have, and the GGUF files after them."""
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        pairs = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
    return merges


def arrays_of_ranks(pre, ranks, first=0):
    """GGUF's arrays of a list of tiktoken's; holes and ids below `first` are control tokens."""
    letters = make_published_ids.alphabet()
    show = lambda token: "".join(letters[b] for b in token)
    size = first + max(ranks.values()) + 1
    tokens, types = [f"<|hole {i}|>" for i in range(size)], [3] * size
    for token, rank in ranks.items():
        tokens[first + rank], types[first + rank] = show(token), 1
    merges = [f"{show(a)} {show(b)}" for a, b in all_merges(ranks)]
    return {"model": "gpt2", "pre": pre, "tokens": tokens, "types": types, "merges": merges}


def nfc(text):
    return unicodedata.normalize("NFC", text)


def tekken(name):
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer
    path = sources.fetch(name)
    data = json.loads(path.read_text())
    config = data["config"]
    special = config["default_num_special_tokens"]
    ranks = {base64.b64decode(t["token_bytes"]): t["rank"] for t in data["vocab"][:config["default_vocab_size"] - special]}
    reference = Tekkenizer.from_file(str(path))
    encode = lambda text: reference.encode(text, bos=False, eos=False)
    return Vocabulary(name, "mistral-common", arrays_of_ranks("tekken", ranks, special), encode)


def of_ranks(name, pre, file, pattern, normal=str):
    """tiktoken itself, with the pattern that the publisher has."""
    import tiktoken
    ranks = make_published_ids.tiktoken_ranks(sources.fetch(file))
    reference = tiktoken.Encoding(name=name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return Vocabulary(name, "tiktoken", arrays_of_ranks(pre, ranks), lambda text: reference.encode_ordinary(normal(text)))


def openai_pattern(encoding):
    import tiktoken_ext.openai_public as public
    public.load_tiktoken_bpe = lambda *_, **__: {}  # the package would fetch it
    return getattr(public, encoding)()["pat_str"]


def of_json(name, file):
    from tokenizers import Tokenizer
    path = sources.fetch(file)
    plain = sources.cache_folder() / "plain" / f"{file}.json"
    plain.parent.mkdir(parents=True, exist_ok=True)
    plain.write_text(sources.text_of(path))
    reference = Tokenizer.from_file(str(plain))
    added = [t["content"] for t in json.loads(plain.read_text())["added_tokens"]]
    return Vocabulary(name, "tokenizers", plain, lambda text: reference.encode(text, add_special_tokens=False).ids,
                      takes=lambda text: not any(t in text for t in added))


def arrays_of_json(name, pre, file):
    """The same tokenizer.json as a GGUF file has it: by the name of its pre-tokeniser."""
    made = of_json(name, file)
    data = json.loads(made.ours.read_text())
    tokens = {id: text for text, id in data["model"]["vocab"].items()}
    types = dict.fromkeys(tokens, 1)
    for token in data["added_tokens"]:
        tokens[token["id"]], types[token["id"]] = token["content"], 3 if token["special"] else 4
    size = max(tokens) + 1
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in data["model"]["merges"]]
    made.ours = {"model": "gpt2", "pre": pre, "tokens": [tokens.get(i, f"[PAD{i}]") for i in range(size)],
                 "types": [types.get(i, 5) for i in range(size)], "merges": merges}
    return made


def sentencepiece(name):
    import sentencepiece as spm
    path = sources.fetch(name)
    return Vocabulary(name, "sentencepiece", path, spm.SentencePieceProcessor(model_file=str(path)).encode)


def sentencepiece_of_gguf(name, path):
    """Google's own SentencePiece over the vocabulary of a GGUF file."""
    import sentencepiece as spm
    from sentencepiece import sentencepiece_model_pb2 as pb
    arrays = check_tokenizers.gguf_arrays(str(path))
    prefix = bool(arrays.get("add_space_prefix", True))
    proto = pb.ModelProto()
    unknown = arrays["unk"] if "unk" in arrays else arrays["types"].index(2)
    for i, (token, score, kind) in enumerate(zip(arrays["tokens"], arrays["scores"], arrays["types"])):
        shown = token if kind == 3 else token.replace(" ", "▁")
        proto.pieces.add(piece=shown, score=score, type=2 if i == unknown else 3 if kind == 2 else kind)  # SentencePiece's numbers
    spec = proto.trainer_spec
    spec.model_type, spec.byte_fallback, spec.vocab_size = pb.TrainerSpec.BPE, True, len(arrays["tokens"])
    spec.unk_id, spec.bos_id, spec.eos_id = unknown, arrays["bos"], arrays["eos"]
    spec.unk_piece, spec.bos_piece, spec.eos_piece = (arrays["tokens"][i] for i in (spec.unk_id, spec.bos_id, spec.eos_id))
    spec.pad_id = -1
    rules = proto.normalizer_spec
    rules.name, rules.add_dummy_prefix, rules.remove_extra_whitespaces, rules.escape_whitespaces = "identity", prefix, False, True
    own = [t for t, kind in zip(arrays["tokens"], arrays["types"]) if kind == 4]
    takes = (lambda text: True) if not prefix else (lambda text: not any(t in text for t in own))
    return Vocabulary(name, "sentencepiece", path, spm.SentencePieceProcessor(model_proto=proto.SerializeToString()).encode, takes=takes)


def rebuilt(name, path):
    """`tokenizers`, put together from the arrays of a byte-level GGUF file and the published pipeline of its name."""
    reference = check_tokenizers.rebuild(check_tokenizers.gguf_arrays(str(path)))
    return Vocabulary(name, "tokenizers", path, lambda text: reference.encode(text, add_special_tokens=False).ids, takes=no_control(path))


def no_control(path):
    arrays = check_tokenizers.gguf_arrays(str(path))
    control = {t for t, kind in zip(arrays["tokens"], arrays.get("types", [])) if kind == 3 and t}
    return lambda text: not any(t in text for t in control)


def published(path):
    """[text, ids] of a ggml-vocab file's .inp and .out."""
    inputs = pathlib.Path(f"{path}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    rows = pathlib.Path(f"{path}.out").read_text().split("\n")
    return [(text, [int(i) for i in row.split()]) for text, row in zip(inputs, rows)]


def checking_text():
    """llama.cpp's text by whose ids its converter knows a pre-tokeniser, and the names by the hashes of these ids."""
    source = (sources.fetch("llama.cpp") / "conversion" / "base.py").read_text()
    text = ast.literal_eval(re.search(r"chktxt = (.*)", source).group(1))
    names = {}
    for digest, name in re.findall(r'chkhsh == "(\w+)":\s*(?:#.*\s*)*res = "([^"]+)"', source):
        names.setdefault(digest, name)
    return text, names


def hash_of(ids):
    return hashlib.sha256(str(ids).encode()).hexdigest()


LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def listed():
    """Name of the vocabulary, and what makes it."""
    models = sources.cache_folder().parent / "models"
    llama_cpp = sources.fetch("llama.cpp") / "models"
    yield "tekken-240718", lambda: tekken("tekken-240718")
    yield "tekken-240911", lambda: tekken("tekken-240911")
    yield "o200k as gpt-4o", lambda: of_ranks("o200k as gpt-4o", "gpt-4o", "o200k", openai_pattern("o200k_base"))
    yield "cl100k as dbrx", lambda: of_ranks("cl100k as dbrx", "dbrx", "cl100k", openai_pattern("cl100k_base"))
    yield "llama3 as llama-bpe", lambda: of_ranks("llama3 as llama-bpe", "llama-bpe", "llama3", LLAMA3)
    yield "llama4", lambda: of_ranks("llama4", "llama4", "llama4", openai_pattern("o200k_base"))
    yield "qwen as qwen2", lambda: of_ranks("qwen as qwen2", "qwen2", "qwen", check_tokenizers.QWEN2, nfc)
    yield "qwen3.6 as qwen35", lambda: of_ranks("qwen3.6 as qwen35", "qwen35", "qwen3.6", check_tokenizers.QWEN35, nfc)
    for file, pre in ("qwen3", "qwen2"), ("deepseek-v3", "deepseek-v3"), ("deepseek-v4", "deepseek-v3"), ("anthropic", None):
        yield f"{file} json", lambda file=file: of_json(f"{file} json", file)
        if pre:
            yield f"{file} as {pre}", lambda file=file, pre=pre: arrays_of_json(f"{file} as {pre}", pre, file)
    for file in "mistral-v1", "mistral-v2", "mistral-v3", "mistral-v7":
        yield file, lambda file=file: sentencepiece(file)
    for file in "llama-spm", "phi-3":
        path = llama_cpp / f"ggml-vocab-{file}.gguf"
        yield file, lambda file=file, path=path: sentencepiece_of_gguf(file, path)
    for file in "llama-bpe", "qwen2", "qwen35", "command-r", "starcoder", "refact", "gpt-2", "mpt", "deepseek-llm", "deepseek-coder":
        path = llama_cpp / f"ggml-vocab-{file}.gguf"
        yield file, lambda file=file, path=path: rebuilt(file, path)
    for name, file in ("smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"), ("gemma3", "gemma-3-270m-q4_k_m.gguf"):
        if (models / file).exists():
            make = sentencepiece_of_gguf if name == "gemma3" else rebuilt
            yield name, lambda name=name, file=file, make=make: make(name, models / file)
