#!/usr/bin/env python3
"""snug's networks for Fashion-MNIST in PyTorch on the CPU, with cross-entropy and AdamW, for bench/cpu_peers.py.

usage: torch_mlp.py FOLDER BATCH PRECISION STEPS THREADS [MODEL [LAYOUT]]
    FOLDER     IDX files of Fashion-MNIST, gzipped      PRECISION  fp32 | bf16 (autocast)
    MODEL      mlp (784-512-512-10, ReLU) | cnn | resnet18 (as snug has them for 28 x 28)
    LAYOUT     last | first: where the channels of images are
The images are in memory as floats, shuffled before the measurement, so a batch is a slice and no DataLoader adds
overhead.  Prints one JSON line: samples per second over all steps, peak bytes.
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


class Block(nn.Module):
    def __init__(self, n_in, n_out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.downsample = None
        if stride != 1 or n_in != n_out:
            self.downsample = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False),
                                            nn.BatchNorm2d(n_out))

    def forward(self, x):
        r = x if self.downsample is None else self.downsample(x)
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(y)) + r, inplace=True)


def unit(n_in, n_out):
    return [nn.Conv2d(n_in, n_out, 3, 1, 1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU(True)]


def make_model(name):
    if name == "mlp":
        return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
                             nn.Linear(512, 10))
    if name == "cnn":
        return nn.Sequential(*unit(1, 32), nn.MaxPool2d(2), *unit(32, 64), nn.MaxPool2d(2),
                             *unit(64, 128), nn.MaxPool2d(2), nn.Conv2d(128, 10, 3), nn.Flatten())
    layers, width = unit(1, 64), 64
    for n_out, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(width, n_out, stride), Block(n_out, n_out, 1)]
        width = n_out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def main():
    folder, precision = sys.argv[1], sys.argv[3]
    batch, steps, threads = int(sys.argv[2]), int(sys.argv[4]), int(sys.argv[5])
    name = sys.argv[6] if len(sys.argv) > 6 else "mlp"
    layout = torch.channels_last if sys.argv[7:] != ["first"] else torch.contiguous_format
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    labels = read_idx(folder, "train-labels-idx1-ubyte", 8).long()
    images = (read_idx(folder, "train-images-idx3-ubyte", 16).view(-1, 784) / 255 - 0.2860) / 0.3530
    order = torch.randperm(len(labels))
    images, labels = images[order], labels[order]
    model = make_model(name)
    if name != "mlp":
        images = images.view(-1, 1, 28, 28).contiguous(memory_format=layout)
        model = model.to(memory_format=layout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, foreach=True)

    def step(i):
        at = i * batch % (len(labels) - batch + 1)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = F.cross_entropy(model(images[at:at + batch]), labels[at:at + batch])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for i in range(50 if name == "mlp" else 2):
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
