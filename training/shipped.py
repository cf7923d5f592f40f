"""Reads drafts as they are shipped (models/) back into folders that train.py starts from and evaluate.py reads: the
values of the quantised matrices, exactly, in fp32; what is not quantised stays as it is.

    python shipped.py MODELS FOLDER [--name smollm2-135m]
"""
import argparse
import json
import os

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import gguf_reader

TYPES = {"q4_0": gguf_reader.Q4_0, "q8_0": gguf_reader.Q8_0}


def small_model(path):
    """a GGUF file -> tensors by their Hugging Face names, config"""
    gguf = gguf_reader.Gguf(path)
    tensors = gguf_reader.weights(gguf, torch.float32)
    return tensors, gguf_reader.config(gguf.meta, "lm_head.weight" not in tensors)


def read(path):
    """a file with quantised matrices -> tensors with those dequantised, the configuration in its metadata or None"""
    tensors = {}
    with safe_open(path, "pt") as file:
        meta = file.metadata()
        for name in file.keys():
            tensor = file.get_tensor(name)
            if name in meta:
                kind = TYPES[meta[name]]
                blocks = tensor.numpy().view(np.uint8).reshape(-1, gguf_reader.BLOCK_BYTES[kind])
                shape = [int(n) for n in meta[f"{name}.shape"].split(",")]
                tensor = torch.from_numpy(gguf_reader.dequantise(blocks, kind).reshape(shape))
            tensors[name] = tensor.contiguous()
    return tensors, json.loads(meta["config"]) if "config" in meta else None


def write(tensors, config, folder):
    os.makedirs(folder, exist_ok=True)
    save_file(tensors, f"{folder}/model.safetensors", metadata={"format": "pt"})
    with open(f"{folder}/config.json", "w") as f:
        json.dump(config, f, indent=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models")
    parser.add_argument("out")
    parser.add_argument("--name", default="smollm2-135m", help="of the target, in the names of the drafts")
    args = parser.parse_args()
    for draft in ("small", "eagle3", "medusa", "longspec", "dflash"):
        source = f"{args.models}/{args.name}-{draft}"
        if not os.path.exists(source):
            continue
        if draft == "small":
            tensors, config = small_model(f"{source}/draft.gguf")
        else:
            tensors = read(f"{source}/model.safetensors")[0]
            with open(f"{source}/config.json") as f:
                config = json.load(f)
        write(tensors, config, f"{args.out}/{draft}")
        print(f"{draft}: {len(tensors)} tensors")


if __name__ == "__main__":
    main()
