"""Models by name: a file, a folder, or a repository of the Hugging Face hub if huggingface_hub is installed."""
from __future__ import annotations

import importlib
import os
import re
from typing import Any

from . import _core

_NAME = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<kind>[\w.-]+))?")


def find_model(model: str | os.PathLike[str] | None) -> str:
    """The path of a model. Only a name like "owner/name:Q4_K_M" that is no path reaches the network, through
    huggingface_hub."""
    if model is None:
        return _core.default_model()
    path = os.fspath(model)
    named = _NAME.fullmatch(path)
    if os.path.exists(path) or not named or path.endswith(".gguf"):
        return path  # the library says what is wrong with it
    try:
        huggingface_hub = importlib.import_module("huggingface_hub")
    except ImportError:
        raise _core.Error(f"'{path}' is neither a file nor a folder; to fetch a repository of that name from the Hugging Face hub, "
                          "install huggingface_hub") from None
    return _fetch(huggingface_hub, named["repo"], named["kind"])


def _fetch(hub: Any, repo: str, kind: str | None) -> str:
    files = [file for file in hub.list_repo_files(repo) if file.endswith(".gguf")]
    if not files and kind is None:
        patterns = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]
        return str(hub.snapshot_download(repo, allow_patterns=patterns))
    # "Q4_K_M" is a word of the file's name, not a part of "IQ4_K_M".
    fitting = [file for file in files if kind is None or re.search(rf"(?<![A-Za-z0-9]){re.escape(kind)}(?![A-Za-z0-9_])", file, re.I)]
    if len(fitting) != 1:
        raise _core.Error(f"'{repo}' has {len(fitting)} GGUF files{f' of kind {kind}' if kind else ''}; name one as {repo}:KIND, of "
                          f"{', '.join(sorted(files)) or 'none'}")
    return str(hub.hf_hub_download(repo, fitting[0]))
