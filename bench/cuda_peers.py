#!/usr/bin/env python3
"""Compares snug with PyTorch on one GPU: the same GPT-2 training step, alternating in one run.

usage: bench/cuda_peers.py PEER [--size 124M|350M|774M|1.5B] [--batch 64] [--seq 1024] [--mode compile]
                           [--rounds 3] [--steps 20] [--python python3] [--recipe "--checkpoint auto ..."]
PEER is a script that trains GPT-2 with PyTorch and prints a JSON line with tok_s and device_gib
(torch_gpt2.py SIZE BATCH SEQ MODE --steps N).  Both train on random tokens in bf16 with fp32 masters and
AdamW, and clip gradients at 1.  The rate is that of the median step, without the first ones.  GiB is the device
memory in use, including the runtime.  --recipe adds flags for snug.
"""
import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from statistics import median

HERE = os.path.dirname(os.path.abspath(__file__))
SNUG_MODELS = {"124M": "gpt2", "350M": "gpt2-medium", "774M": "gpt2-large", "1.5B": "gpt2-xl"}
WARM_UP = 3  # steps of either program that are not counted


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)}\nexited with {done.returncode}: {done.stderr.strip()[-400:]}")
    return done.stdout, done.stderr


def run_snug(a):
    out, lines = run([os.path.join(HERE, "..", "snug"), "train", SNUG_MODELS[a.size], "--device", "cuda",
                      "--batch", str(a.batch), "--seq", str(a.seq), "--precision", "bf16", "--steps",
                      str(a.steps + WARM_UP), "--eval-every", "-1", "--json", *shlex.split(a.recipe)])
    summary = json.loads(out.strip().splitlines()[-1])
    rates = [float(n.replace(",", "")) for n in re.findall(r"([\d.,]+) tokens/s", lines)]
    if summary["planned_bytes"] != summary["allocated_bytes"]:
        sys.exit(f"planned {summary['planned_bytes']} bytes, allocated {summary['allocated_bytes']}")
    rate = median(rates[WARM_UP:]) if len(rates) > WARM_UP else summary["tokens_per_s"]
    return rate, (summary["allocated_bytes"] + summary["runtime_bytes"]) / 2**30


def run_peer(a):
    out, _ = run([a.python, a.peer, a.size, str(a.batch), str(a.seq), a.mode, "--steps", str(a.steps)])
    found = json.loads(out.strip().splitlines()[-1])
    if "error" in found:
        return None, None, found["peer"]
    return found["tok_s"], found["device_gib"], found["peer"]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("peer")
    for name, kind, value in (("size", str, "124M"), ("batch", int, 64), ("seq", int, 1024),
                              ("mode", str, "compile"), ("rounds", int, 3), ("steps", int, 20),
                              ("python", str, "python3"), ("recipe", str, "")):
        p.add_argument("--" + name, type=kind, default=value)
    a = p.parse_args()
    print(f"GPT-2 {a.size}, batch {a.batch} x {a.seq}, bf16, AdamW {a.recipe}")
    print(f"{'round':>5} {'snug tokens/s':>14} {'torch tokens/s':>15} {'ratio':>7} {'snug GiB':>9} {'torch GiB':>10}")
    ratios = []
    for i in range(a.rounds):
        ours, our_gib = run_snug(a)
        theirs, their_gib, peer = run_peer(a)
        if theirs is None:
            print(f"{i + 1:>5} {ours:>14.0f} {'out of memory':>15} {'':>7} {our_gib:>9.2f}", flush=True)
            continue
        ratios.append(ours / theirs)
        print(f"{i + 1:>5} {ours:>14.0f} {theirs:>15.0f} {ours / theirs:>7.3f} {our_gib:>9.2f} {their_gib:>10.2f}",
              flush=True)
    if ratios:
        print(f"{peer}, {a.mode}: snug is {median(ratios):.3f} times as fast (median of {len(ratios)} rounds)")


if __name__ == "__main__":
    main()
