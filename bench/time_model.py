#!/usr/bin/env python3
"""Compares predicted with measured step times, for configurations of gpt2 on this CPU.

usage: bench/time_model.py [--threads N] [--rounds N] [--steps N] [--cpu-time]

`snug bench cpu` measures the rates, `snug plan` predicts, and `snug train` on random data measures.  Each configuration
runs a few steps in every round, one configuration after the other.  The fastest step of all rounds counts, because
slower ones include the load of other users.

--cpu-time uses the processor time between the ends of two steps of one run instead of wall-clock time: on a
machine where others take most of the cores, with --threads 1, that is what the step would take alone.
(The difference of two runs would not do: their starts take ten times as long as a step and differ by seconds.)
The rates are measured in thread CPU time with --threads 1, else in wall-clock time.
"""
import argparse
import json
import os
import re
import subprocess
import sys

CONFIGURATIONS = [
    "--batch 1 --seq 64",
    "--batch 4 --seq 64 --micro-batch 2",
    "--batch 2 --seq 256",
    "--batch 4 --seq 256 --micro-batch 1 --precision bf16",
    "--batch 1 --seq 1024",
    "--batch 1 --seq 1024 --precision bf16",
]
SNUG = os.environ.get("SNUG", os.path.join(os.path.dirname(__file__), "..", "snug"))


def snug(*words):
    done = subprocess.run([SNUG, *words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return done


def cpu_seconds(pid):
    """Processor time of a process and its threads so far, user and system."""
    with open("/proc/%d/stat" % pid) as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(flags, steps):
    """Returns the wall-clock seconds of each step, and the processor time of the process at the end of each."""
    words = ["train", "gpt2", *flags, "--steps", str(steps), "--eval-every", "-1", "--json"]
    tokens = int(flags[flags.index("--batch") + 1]) * int(flags[flags.index("--seq") + 1])
    by_clock, at_end = [], []
    with subprocess.Popen([SNUG, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as child:
        for line in child.stderr:
            rate = re.search(r"([\d.,]+) tokens/s", line)
            if rate:
                at_end.append(cpu_seconds(child.pid))
                by_clock.append(tokens / float(rate.group(1).replace(",", "")))
    if child.returncode != 0 or len(by_clock) != steps:
        sys.exit("snug %s: exited with %d after %d steps" % (" ".join(words), child.returncode, len(by_clock)))
    return by_clock, at_end


def measure(flags, steps, by_cpu_time):
    if not by_cpu_time:
        return min(run(flags, steps)[0])
    at_end = run(flags, steps + 1)[1]
    return (at_end[-1] - at_end[0]) / steps


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", default="1")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--keep-rates", action="store_true", help="use the rates measured before")
    a = parser.parse_args()
    threads = ["--threads", a.threads]
    if not a.keep_rates:
        snug("bench", "cpu", *threads, "--batch", "1")
    flags = [c.split() + threads for c in CONFIGURATIONS]
    predicted = [json.loads(snug("plan", "gpt2", *f, "--json").stdout)["step_seconds"] for f in flags]
    measured = [float("inf")] * len(flags)
    for _ in range(a.rounds):
        for i, f in enumerate(flags):
            measured[i] = min(measured[i], measure(f, a.steps, a.cpu_time))
    print("| gpt2, threads %s | predicted | measured | off by |\n|---|---|---|---|" % a.threads)
    for c, p, m in zip(CONFIGURATIONS, predicted, measured):
        print("| `%s` | %.3f s | %.3f s | %+.0f%% |" % (c, p, m, 100 * (p / m - 1)))


if __name__ == "__main__":
    main()
