"""Packs trained drafts in the types they are shipped in, a quarter of their size, so that little has to travel from the
machine that trained them; shipped.py unpacks them for tools/ship_drafts.py, whose quantisation then changes nothing.

    python pack.py DRAFTS FOLDER        FOLDER/NAME.safetensors, with the configuration in its metadata
    python pack.py --unpack FOLDER DRAFTS
"""
import argparse
import glob
import json
import os

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import shipped
from dflash import DFlashDraft
from models import EagleDraft, LongSpecDraft, MedusaDraft, SmallDraft

KINDS = {kind.folder: kind for kind in (SmallDraft, EagleDraft, MedusaDraft, LongSpecDraft, DFlashDraft)}


def blocks(weight, kind):
    """weight [rows, columns] -> GGUF's blocks of it [n, bytes], rounded as quantise.py rounds"""
    values = weight.float().reshape(-1, 32)
    if kind == "q8_0":
        step = values.abs().amax(1, keepdim=True) / 127
        levels = (values * torch.where(step == 0, 0.0, 1 / step)).round().to(torch.int8).view(torch.uint8)
    else:
        step = values.gather(1, values.abs().argmax(1, keepdim=True)) / -8
        levels = (values * torch.where(step == 0, 0.0, 1 / step) + 8.5).floor().clamp(0, 15).to(torch.uint8)
        levels = levels[:, :16] | levels[:, 16:] << 4
    return torch.cat([step.half().view(torch.uint8), levels], 1)


def pack(name, folder, out):
    tensors, meta = {}, {}
    for key, tensor in load_file(f"{folder}/model.safetensors").items():
        kind = KINDS[name].shipped(key) if tensor.is_floating_point() and tensor.ndim == 2 else None
        if kind:
            meta[key], meta[f"{key}.shape"] = kind, ",".join(str(n) for n in tensor.shape)
            tensor = blocks(tensor, kind).flatten()
        tensors[key] = tensor.contiguous()
    with open(f"{folder}/config.json") as f:
        meta["config"] = json.dumps(json.load(f))
    save_file(tensors, out, metadata=meta)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("out")
    parser.add_argument("--unpack", action="store_true")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    if args.unpack:
        for path in sorted(glob.glob(f"{args.source}/*.safetensors")):
            name = os.path.basename(path).split(".")[0]
            tensors, config = shipped.read(path)
            shipped.write(tensors, config, f"{args.out}/{name}")
            print(f"{name}: {len(tensors)} tensors")
        return
    for name in KINDS:
        if os.path.exists(f"{args.source}/{name}/model.safetensors"):
            out = f"{args.out}/{name}.safetensors"
            pack(name, f"{args.source}/{name}", out)
            with safe_open(out, "pt") as file:
                print(f"{name}: {len(file.keys())} tensors, {os.path.getsize(out)} bytes")


if __name__ == "__main__":
    main()
