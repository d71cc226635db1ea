#!/usr/bin/env python3
"""Paceline's CUDA engine against PyTorch on one GPU, in turns, as a table.

    gpu_table.py --paceline target/release/examples/gpu_speed [--modes eager,graph,compile] [--rounds 2] [--only resnet50:32:64]

Nothing is built: `gpu_speed` (cargo build --release -p paceline-engine --example gpu_speed) may come from another machine.
Each case runs Paceline, then PyTorch's modes, as often as --rounds says; the median of each counts. Exit status 1 where
Paceline falls short of the factor that the table names.
"""

import argparse
import json
import os
import site
import statistics
import subprocess
import sys
from pathlib import Path

# Network, side, batch, steps, and the least that Paceline is to give relative to PyTorch's best mode.
CASES = [
    ("resnet50", 32, 64, 200, 1.2),
    ("mobilenet_v2", 32, 64, 200, 1.2),
    ("resnet50", 256, 64, 30, 1.1),
    ("resnet50", 256, 256, 15, 1.2),
    ("mobilenet_v2", 256, 64, 30, 1.2),
]


def environment():
    """PyTorch's wheels bring cuDNN, cuBLAS and NVRTC: their folders, for a loader that looks nowhere else."""
    folders = [str(p) for root in site.getsitepackages() for p in sorted(Path(root, "nvidia").glob("*/lib"))]
    folders.append(os.environ.get("LD_LIBRARY_PATH", ""))
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, folders))}


def lines(command, env=None):
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not found:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()[-600:]}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paceline", required=True, help="the gpu_speed binary")
    parser.add_argument("--modes", default="eager,graph,compile")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", help="one case, as network:side:batch")
    args = parser.parse_args()
    peer = [sys.executable, str(Path(__file__).with_name("torch_gpu.py"))]
    print("| network | side | batch | Paceline | PyTorch eager | graph | compile | factor | wanted | MB, Paceline / PyTorch | first step, s |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    short = False
    for network, side, batch, steps, wanted in CASES:
        if args.only and args.only != f"{network}:{side}:{batch}":
            continue
        classes = 1000 if side > 64 else 10
        own, others, memory = [], {}, 0
        for _ in range(args.rounds):
            command = [args.paceline, network, "--input", str(side), "--batch", str(batch), "--steps", str(steps)]
            own += lines(command + ["--precision", args.precision, "--classes", str(classes)], environment())
            command = peer + [network, "--input", f"{side}x{side}", "--batch", str(batch), "--classes", str(classes)]
            command += ["--precision", args.precision, "--mode", args.modes, "--steps", str(steps)]
            for line in lines(command):
                others.setdefault(line["mode"], []).append(line["images_per_s"])
                memory = max(memory, line["peak_mb"])
        rate = statistics.median(line["images_per_s"] for line in own)
        medians = {mode: statistics.median(rates) for mode, rates in others.items()}
        factor = rate / max(medians.values())
        short |= factor < wanted
        cells = [f"{medians[mode]:,.0f}" if mode in medians else "" for mode in ("eager", "graph", "compile")]
        print(
            f"| {network} | {side} | {batch} | {rate:,.0f} | {' | '.join(cells)} | {factor:.2f} | {wanted} "
            f"| {own[-1]['driver_mb']} / {memory} | {own[-1]['first_step_s']} |",
            flush=True,
        )
    sys.exit(1 if short else 0)


if __name__ == "__main__":
    main()
