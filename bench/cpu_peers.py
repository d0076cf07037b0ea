#!/usr/bin/env python3
"""Compares snug with PyTorch on the CPU: the same training step, alternating in one run.

usage: bench/cpu_peers.py [--size 124M|350M|nano|mlp|cnn|resnet18|DECODER] [--batch N] [--seq 64]
                          [--precision fp32] [--threads 2] [--rounds 3] [--steps N] [--python python3]
                          [--data FOLDER] [--layout last|first] [--mode eager] [--recipe "--lora 16 ..."]
nano, 124M and 350M are GPT-2 on random tokens, batch 4.  DECODER is a model of torch_decoder.py, always in bf16, with
its --mode and with snug's --recipe.  mlp, cnn and resnet18 are snug's presets on Fashion-MNIST
(in FOLDER), batch 128 (resnet18: 32), without clipping in either program; --layout sets where PyTorch puts the
channels of images.  Machines are shared and noisy, so each round runs both programs, and the result is the median
of the rounds' ratios.  PyTorch is the one that `--python` has (Debian: python3-torch with /usr/bin/python3).
"""
import argparse
import json
import os
import shlex
import subprocess
import sys
from statistics import median

HERE = os.path.dirname(os.path.abspath(__file__))
SNUG_MODELS = {"nano": "gpt-nano", "124M": "gpt2", "350M": "gpt2-medium"}
IMAGES = {"mlp": (128, 1000), "cnn": (128, 40), "resnet18": (32, 5)}  # batch, steps
GPT2 = ("nano", "124M", "350M")


def last_json(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nexited with {done.returncode}: {done.stderr.strip()[-400:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def run_snug(a):
    what = [a.data, "--clip", "0"] if a.size in IMAGES else ["--seq", str(a.seq)]
    out = last_json([os.path.join(HERE, "..", "snug"), "train", SNUG_MODELS.get(a.size, a.size), *what,
                     "--batch", str(a.batch), "--precision", a.precision, "--threads",
                     str(a.threads), "--steps", str(a.steps + 1), "--eval-every", "-1", "--json",
                     *shlex.split(a.recipe)])
    return out["tokens_per_s"], out["measured_peak_bytes"]


def run_torch(a):
    if a.size not in GPT2 and a.size not in IMAGES:
        out = last_json([a.python, os.path.join(HERE, "torch_decoder.py"), a.size, str(a.batch), str(a.seq), a.mode,
                         "--device", "cpu", "--threads", str(a.threads), "--steps", str(a.steps)])
        return out["per_s"], out["peak_bytes"], out["peer"]
    what = ["torch_mlp.py", a.data, str(a.batch)] if a.size in IMAGES else [
        "torch_gpt2.py", a.size, str(a.batch), str(a.seq)]
    which = [a.size, a.layout] if a.size in IMAGES else []
    out = last_json([a.python, os.path.join(HERE, what[0]), *what[1:], a.precision, str(a.steps),
                     str(a.threads), *which])
    return out["per_s"], out["peak_bytes"], out["peer"]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, kind, value in (("size", str, "124M"), ("batch", int, 0), ("seq", int, 64),
                              ("precision", str, "fp32"), ("threads", int, 2), ("rounds", int, 3),
                              ("steps", int, 0), ("python", str, "python3"), ("layout", str, "last"),
                              ("mode", str, "eager"), ("recipe", str, ""),
                              ("data", str, os.path.join(HERE, "../../shared/data/fashion-mnist"))):
        p.add_argument("--" + name, type=kind, default=value)
    a = p.parse_args()
    is_images = a.size in IMAGES
    batch, steps = IMAGES.get(a.size, (4, 3))
    a.batch, a.steps = a.batch or batch, a.steps or steps
    if not is_images and a.size not in GPT2:
        a.precision = "bf16"
    unit = "samples" if is_images else "tokens"
    print(f"{'GPT-2 ' if a.size in GPT2 else ''}{a.size}, batch {a.batch}"
          f"{'' if is_images else f' x {a.seq}'}, {a.precision}, {a.threads} threads, AdamW {a.recipe}")
    print(f"{'round':>5} {'snug ' + unit + '/s':>15} {'torch ' + unit + '/s':>16} {'ratio':>7} "
          f"{'snug GiB':>9} {'torch GiB':>10}")
    ratios = []
    for i in range(a.rounds):
        ours, our_peak = run_snug(a)
        theirs, their_peak, peer = run_torch(a)
        ratios.append(ours / theirs)
        print(f"{i + 1:>5} {ours:>15.1f} {theirs:>16.1f} {ours / theirs:>7.2f} "
              f"{our_peak / 2**30:>9.2f} {their_peak / 2**30:>10.2f}", flush=True)
    print(f"{peer}: snug is {median(ratios):.2f} times as fast (median of {a.rounds} rounds)")


if __name__ == "__main__":
    main()
