#!/usr/bin/env python3
"""A GPT-2 training step in PyTorch on the CPU, as its users write it, for bench/cpu_peers.py.

usage: torch_gpt2.py SIZE BATCH SEQ PRECISION STEPS THREADS
    SIZE       nano | 124M | 350M           PRECISION  fp32 | bf16 (autocast)
Prints one JSON line: tokens per second (median step), milliseconds, peak resident bytes.
"""
import json
import resource
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

SHAPES = {"nano": (6, 384, 6, 256), "124M": (12, 768, 12, 50257), "350M": (24, 1024, 16, 50257)}


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x):
        batch, time_, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=2)
        q, k, v = (t.view(batch, time_, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:  # before PyTorch 2
            scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
            mask = torch.ones(time_, time_, dtype=torch.bool).tril()
            y = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(batch, time_, width))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, layers, width, heads, vocabulary, length):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        logits = self.norm(self.blocks(x)) @ self.tokens.weight.t()
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def main():
    size, batch, seq, precision, steps, threads = sys.argv[1], *map(str, sys.argv[2:7])
    batch, seq, steps, threads = int(batch), int(seq), int(steps), int(threads)
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    layers, width, heads, vocabulary = SHAPES[size]
    model = GPT2(layers, width, heads, vocabulary, seq)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)

    def step():
        ids, targets = torch.randint(0, vocabulary, (2, batch, seq))
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = model(ids, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    median = sorted(times)[len(times) // 2]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"peer": "torch " + torch.__version__, "per_s": batch * seq / median,
                      "ms": median * 1e3, "peak_bytes": peak}))


if __name__ == "__main__":
    main()
