#!/usr/bin/env python3
"""Measures the effect of a larger batch on the test error: one model at a small and a large batch, equal epochs.

usage: bench/large_batch.py [MODEL [DATA]] [--batch 64] [--large 4096] [--epochs 5] [--seeds 3] [--json] [recipe flags]

With k times the batch there are k times fewer updates. Two rules of thumb scale the learning rate by k (the updates of
an epoch add up to the same) or by the square root of k (the noise of an update stays the same), both with warmup
while the weights change fast. Each line is one of them, without and with warmup (--warmup steps, or a tenth of all).
A run that diverges is a result too: it is counted, not averaged. Runs ./snug, or the program in $SNUG.
"""
import argparse
import json
import math
import os
import statistics
import subprocess
import sys

RULES = [("unchanged", lambda k: 1.0), ("x sqrt(k)", math.sqrt), ("x k", lambda k: k)]


def arguments():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n")[2].removeprefix("usage: "))
    parser.add_argument("model", nargs="?", default="mlp")
    parser.add_argument("data", nargs="?", default="fashion-mnist")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--large", type=int, default=4096)
    parser.add_argument("--epochs", type=float, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--warmup", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args, args.recipe = parser.parse_known_args()
    if args.large <= args.batch:
        parser.error(f"--large {args.large} is not larger than --batch {args.batch}")
    if args.seeds < 1 or args.epochs <= 0:
        parser.error("--seeds must be at least 1 and --epochs above 0")
    return args


def train(args, batch, lr, warmup, seed):
    """Returns the last line of `train --json`, or None if the run diverged."""
    command = [os.environ.get("SNUG", "./snug"), "train", args.model, args.data, "--batch", str(batch), "--lr", repr(lr),
               "--warmup", str(warmup), "--seed", str(seed), "--epochs", str(args.epochs), "--quiet", "--json",
               *args.recipe]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0 and "not finite" in run.stderr:
        return None
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)}: {run.stderr.strip()}")
    result = json.loads(run.stdout.strip().split("\n")[-1])
    if "val_loss" not in result:
        sys.exit(f"{args.data}: no held-out data to test on; use another data set")
    return result


def row(args, batch, lr, rule, warmup):
    """One line of the table: the runs of all seeds."""
    values, steps, measure = [], None, "error"
    for seed in range(args.seed, args.seed + args.seeds):
        result = train(args, batch, lr, warmup, seed)
        if result is None:
            outcome = "diverged"
        else:
            measure = "error" if "val_accuracy" in result else "loss"
            values.append(1 - result["val_accuracy"] if measure == "error" else result["val_loss"])
            steps = result["steps"]
            outcome = f"test error {100 * values[-1]:.2f}%" if measure == "error" else f"test loss {values[-1]:.4f}"
        print(f"batch {batch}, lr {lr:g}, warmup {warmup}, seed {seed}: {outcome}", file=sys.stderr)
    return {"batch": batch, "lr": lr, "rule": rule, "warmup": warmup, "steps": steps, "measure": measure,
            "mean": statistics.mean(values) if values else None,
            "deviation": statistics.stdev(values) if len(values) > 1 else None,
            "diverged": args.seeds - len(values)}


def main():
    args = arguments()
    k = args.large / args.batch
    rows = [row(args, args.batch, args.lr, "as given", 0)]
    rows += [row(args, args.large, args.lr * rule(k), name, 0) for name, rule in RULES]
    steps = max((r["steps"] for r in rows[1:] if r["steps"]), default=10)
    warmup = args.warmup or math.ceil(0.1 * steps)
    rows += [row(args, args.large, args.lr * rule(k), name, warmup) for name, rule in RULES]
    if args.json:
        print(json.dumps({"model": args.model, "data": args.data, "epochs": args.epochs, "seeds": args.seeds, "k": k,
                          "rows": rows}))
        return
    print(f"{args.model} on {args.data}, {args.epochs:g} epochs, k = {k:g}, mean +- deviation over {args.seeds} seeds\n")
    print(f"{'batch':>7}  {'lr':<9}  {'':<9}  {'warmup':>7}  {'steps':>6}  test {rows[0]['measure']}")
    for r in rows:
        scale, digits = (100, 2) if r["measure"] == "error" else (1, 4)
        outcome = "" if r["mean"] is None else f"{scale * r['mean']:.{digits}f}"
        outcome += "" if r["deviation"] is None else f" +- {scale * r['deviation']:.{digits}f}"
        outcome += f"  {r['diverged']} of {args.seeds} diverged" if r["diverged"] else ""
        print(f"{r['batch']:>7}  {r['lr']:<9.4g}  {r['rule']:<9}  {r['warmup'] or '-':>7}  {r['steps'] or '-':>6}  {outcome}")


main()
