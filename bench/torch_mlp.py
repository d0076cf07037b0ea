#!/usr/bin/env python3
"""The peer: snug's `mlp` (784-512-512-10, ReLU, cross-entropy, AdamW) in PyTorch on the CPU.

usage: torch_mlp.py FOLDER BATCH PRECISION STEPS THREADS
    FOLDER     IDX files of Fashion-MNIST, gzipped      PRECISION  fp32 | bf16 (autocast)
The images lie in memory as floats, shuffled before the clock starts, so that a batch is a slice: no
DataLoader is in the way.  Prints one JSON line: samples per second over all steps, peak bytes.
"""
import gzip
import json
import os
import resource
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


def read_idx(folder, name, header_bytes):
    with gzip.open(os.path.join(folder, name + ".gz")) as file:
        data = bytearray(file.read()[header_bytes:])
    return torch.frombuffer(data, dtype=torch.uint8)


def main():
    folder, precision = sys.argv[1], sys.argv[3]
    batch, steps, threads = int(sys.argv[2]), int(sys.argv[4]), int(sys.argv[5])
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    labels = read_idx(folder, "train-labels-idx1-ubyte", 8).long()
    images = (read_idx(folder, "train-images-idx3-ubyte", 16).view(-1, 784) / 255 - 0.2860) / 0.3530
    order = torch.randperm(len(labels))
    images, labels = images[order], labels[order]
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
                          nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, foreach=True)

    def step(i):
        at = i * batch % (len(labels) - batch + 1)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = F.cross_entropy(model(images[at:at + batch]), labels[at:at + batch])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for i in range(50):
        step(i)
    begin = time.perf_counter()
    for i in range(steps):
        step(i)
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"peer": "torch " + torch.__version__, "per_s": batch * steps / seconds,
                      "peak_bytes": peak}))


if __name__ == "__main__":
    main()
