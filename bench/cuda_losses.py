#!/usr/bin/env python3
"""Compares bf16 training on the GPU with PyTorch's autocast.  Both train GPT-2 124M on a text in GPT-2's tokens, from
the same weights and on the same batches.  Prints both curves and the largest relative difference of the loss.

usage: bench/cuda_losses.py TEXT BPE [--steps 200] [--batch 8] [--seq 256] [--lr 3e-4] [--snug ./snug]
BPE is a folder with GPT-2's encoder.json and vocab.bpe.  Fails if a loss differs by more than 1%.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Tokenizer

MASK = (1 << 64) - 1
SHARD_HEADER, SHARD_MAGIC, SHARD_VERSION = 256, 20240520, 1


def random_u64(seed, stream, index):
    """Philox 4x32-10, as in src/base/rng.h: the first 64 bits."""
    c = [index & 0xFFFFFFFF, index >> 32, stream & 0xFFFFFFFF, stream >> 32]
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k0, p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k1, p0 & 0xFFFFFFFF]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c[0] << 32 | c[1]


def hash_of(text):
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = (h ^ byte) * 0x100000001B3 & MASK
    return h


def batch_of(tokens, step, a):
    """The windows that snug draws for a step: anywhere in the first nine tenths."""
    n_train = len(tokens) * 9 // 10
    stream = hash_of("token windows")
    at = [random_u64(a.seed, stream, step * a.batch + i) % (n_train - a.seq) for i in range(a.batch)]
    window = torch.tensor(np.stack([tokens[p : p + a.seq + 1] for p in at]).astype(np.int64), device="cuda")
    return window[:, :-1], window[:, 1:]


def write_shard(tokens, path):
    header = np.zeros(SHARD_HEADER, np.int32)
    header[:3] = SHARD_MAGIC, SHARD_VERSION, len(tokens)
    with open(path, "wb") as f:
        f.write(header.tobytes() + tokens.astype(np.uint16).tobytes())


def of_torch(model, tokens, a):
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                                  lr=a.lr, betas=(0.9, a.beta2), eps=1e-8)
    losses = []
    for step in range(a.steps):
        ids, targets = batch_of(tokens, step, a)
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(ids).logits
            loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return losses


def of_snug(folder, shard, a):
    run = os.path.join(folder, "run")
    subprocess.run([a.snug, "train", os.path.join(folder, "model"), shard, "--device", "cuda", "--precision", "bf16",
                    "--batch", str(a.batch), "--seq", str(a.seq), "--steps", str(a.steps), "--lr", str(a.lr),
                    "--optimizer", "adamw", "--opt", f"beta2={a.beta2}", "--weight-decay", "0.1", "--clip", "1",
                    "--schedule", "constant", "--warmup", "0", "--seed", str(a.seed), "--eval-every", "-1",
                    "--save-every", "0", "--quiet", "--out", run], check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(run, "metrics.jsonl")) as f:
        return [json.loads(line)["loss"] for line in f]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("text")
    p.add_argument("bpe")
    for name, kind, value in (("steps", int, 200), ("batch", int, 8), ("seq", int, 256), ("lr", float, 3e-4),
                              ("beta2", float, 0.95), ("seed", int, 1), ("snug", str, "./snug")):
        p.add_argument("--" + name, type=kind, default=value)
    a = p.parse_args()
    torch.manual_seed(a.seed)
    with tempfile.TemporaryDirectory() as folder:
        bpe = GPT2Tokenizer(os.path.join(a.bpe, "encoder.json"), os.path.join(a.bpe, "vocab.bpe"))
        tokens = np.array(bpe.encode(open(a.text).read()), np.uint16)
        shard = os.path.join(folder, "tokens.bin")
        write_shard(tokens, shard)
        model = GPT2LMHeadModel(GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)).cuda()
        model.save_pretrained(os.path.join(folder, "model"))
        theirs = of_torch(model, tokens, a)
        del model
        torch.cuda.empty_cache()
        ours = of_snug(folder, shard, a)
    if len(ours) != a.steps:
        sys.exit(f"snug ran {len(ours)} of {a.steps} steps")
    gaps = [abs(x - y) / y for x, y in zip(ours, theirs)]
    for step in sorted({0, *range(9, a.steps, 20), a.steps - 1}):
        print(f"step {step + 1:4d}  snug {ours[step]:.4f}  PyTorch {theirs[step]:.4f}  {100 * gaps[step]:.3f}%")
    worst = max(range(a.steps), key=lambda i: gaps[i])
    print(f"largest difference {100 * gaps[worst]:.3f}% at step {worst + 1} of {len(ours)}")
    return 0 if all(gap <= 0.01 for gap in gaps) else 1  # false for NaN


if __name__ == "__main__":
    sys.exit(main())
