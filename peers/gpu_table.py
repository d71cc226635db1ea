#!/usr/bin/env python3
"""Paceline's CUDA engine against PyTorch on one GPU, in turns, as a table.

    gpu_table.py --paceline target/release/examples/gpu_speed [--only resnet50:32:64:bf16,...] [--modes eager,graph,compile]

Nothing is built: `gpu_speed` (cargo build --release -p paceline-engine --example gpu_speed) may come from another machine.
First, all networks of the table are compiled by torch.compile at the same time, at most --compile-limit seconds; what is not
done by then is cut, and the table says so. Then, row by row, nothing else running: Paceline and each of PyTorch's modes take
turns, --rounds times, and the median of each counts. Images/s; factors are to PyTorch's best mode.

Exit status 1 where Paceline falls short: of the factor that a row names, of PyTorch's memory (its best mode's, as its allocator
holds it, against what the driver says of Paceline), or of a first step within 5 s of the start, the last of the rounds.
"""

import argparse
import datetime
import json
import os
import queue
import shlex
import site
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

# Network, side, batch, precision, steps a round, and the least that Paceline is to give relative to PyTorch's best mode.
CASES = [
    ("resnet50", 32, 64, "bf16", 200, 1.2),
    ("mobilenet_v2", 32, 64, "bf16", 200, 1.2),
    ("resnet50", 256, 64, "bf16", 30, 1.1),
    ("resnet50", 256, 256, "bf16", 10, 1.2),
    ("mobilenet_v2", 256, 64, "bf16", 30, 1.2),
    ("resnet50", 32, 64, "fp32", 100, None),
    ("mobilenet_v2", 32, 64, "fp32", 100, None),
    ("resnet50", 256, 64, "fp32", 8, None),
    ("resnet50", 256, 64, "tf32", 15, None),
]
MODES = ("eager", "graph", "compile")
FIRST_STEP = 5.0
COLUMNS = ["network", "side", "batch", "precision", "Paceline", *MODES, "factor", "wanted", "MB", "first step, s"]


def environment():
    """PyTorch's wheels bring cuDNN, cuBLAS and NVRTC: their folders, for a loader that looks nowhere else."""
    folders = [str(p) for root in site.getsitepackages() for p in sorted(Path(root, "nvidia").glob("*/lib"))]
    folders.append(os.environ.get("LD_LIBRARY_PATH", ""))
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, folders))}


def name(case):
    return ":".join(map(str, case[:4]))


def classes(case):
    return 1000 if case[1] > 64 else 10


class Peer:
    """A PyTorch process that waits for its turns."""

    def __init__(self, case, mode, compile_mode):
        network, side, batch, precision, steps, _ = case
        command = [sys.executable, str(Path(__file__).with_name("torch_gpu.py")), network, "--serve", "--mode", mode]
        command += ["--input", f"{side}x{side}", "--batch", str(batch), "--classes", str(classes(case))]
        command += ["--precision", precision, "--steps", str(steps), "--compile-mode", compile_mode]
        pipe = subprocess.PIPE
        # Several compile at once: none is to take all cores.
        env = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "4"}
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env)
        self.mode, self.lines, self.errors, self.failed = mode, queue.Queue(), [], None
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=lambda: self.errors.extend(self.process.stderr), daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                self.lines.put(json.loads(line))
        self.lines.put(None)

    def answer(self, seconds):
        """Its next line; None where it was cut or has failed, and why is kept."""
        if self.failed:
            return None
        try:
            line = self.lines.get(timeout=max(seconds, 0.01))
        except queue.Empty:
            return self.end(f"cut at {seconds:.0f} s")
        return line if line is not None else self.end("failed: " + "".join(self.errors).strip()[-400:])

    def turn(self, seconds=120):
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except (BrokenPipeError, ValueError):
            pass  # It has ended; why is among its lines.
        return self.answer(seconds)

    def end(self, why=None):
        self.failed = self.failed or why
        self.process.kill()
        self.process.wait()


def run_paceline(binary, case):
    network, side, batch, precision, steps, _ = case
    command = [binary, network, "--input", str(side), "--batch", str(batch), "--steps", str(steps)]
    command += ["--precision", precision, "--classes", str(classes(case))]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not found:
        sys.exit(f"{shlex.join(command)}: {done.stderr.strip()[-600:]}")
    return found[-1]


def measure(args, case, peers):
    """A row, and where Paceline falls short in it."""
    wanted = case[5]
    for mode in args.modes:
        if mode not in peers:
            peers[mode] = Peer(case, mode, args.compile_mode)
            peers[mode].answer(120)
    ready = {mode: peer.turn() for mode, peer in peers.items()}
    own, rates = [], {mode: [] for mode in peers}
    for _ in range(args.rounds):
        own.append(run_paceline(args.paceline, case))
        for mode, peer in peers.items():
            line = peer.turn()
            if line:
                rates[mode].append(line["images_per_s"])
    rate = statistics.median(line["images_per_s"] for line in own)
    medians = {mode: statistics.median(found) for mode, found in rates.items() if found}
    for mode, peer in peers.items():
        note = peer.failed or (ready[mode] or {}).get("note")
        spread = ", ".join(map(str, rates[mode]))
        print(f"{name(case)} {mode}: {spread or 'nothing'} {note or ''}".rstrip(), file=sys.stderr)
    print(f"{name(case)} Paceline: {', '.join(str(line['images_per_s']) for line in own)}", file=sys.stderr, flush=True)
    best = max(medians, key=medians.get) if medians else None
    factor = rate / medians[best] if best else None
    memory, first = own[-1]["driver_mb"], own[-1]["first_step_s"]
    short = []
    if wanted and (not factor or factor < wanted):
        short.append(f"{name(case)}: {wanted} times PyTorch's best mode was wanted")
    if best and memory > ready[best]["peak_mb"]:
        short.append(f"{name(case)}: {memory} MB, PyTorch's {best} holds {ready[best]['peak_mb']}")
    if first > FIRST_STEP:
        short.append(f"{name(case)}: the first step came after {first} s")
    cells = [str(cell) for cell in case[:4]] + [f"{rate:,.0f}"]
    for mode in MODES:
        cut = peers[mode].failed.split(":")[0] if mode in peers and peers[mode].failed else ""
        cells.append(f"{medians[mode]:,.0f}" if mode in medians else cut)
    cells += [f"{factor:.2f}" if factor else "", str(wanted or "")]
    cells.append(f"{memory:,} / {ready[best]['peak_mb']:,}" if best else f"{memory:,}")
    cells.append(f"{first} / {ready[best]['first_step_s']}" if best else str(first))
    return cells, short


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paceline", required=True, help="the gpu_speed binary")
    parser.add_argument("--modes", type=lambda text: text.split(","), default=list(MODES))
    parser.add_argument("--compile-mode", choices=["default", "max-autotune-no-cudagraphs"], default="default")
    parser.add_argument("--compile-limit", type=float, default=150, metavar="SECONDS")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help=f"rows, as a list of {name(CASES[0])} and so on; all where left out")
    args = parser.parse_args()
    if not set(args.modes) <= set(MODES):
        parser.error(f"modes are {', '.join(MODES)}")
    chosen = args.only.split(",") if args.only else [name(case) for case in CASES]
    unknown = set(chosen) - {name(case) for case in CASES}
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(map(name, CASES))}")
    rows = [case for case in CASES if name(case) in chosen]
    begun = time.monotonic()
    compiling = {}
    if "compile" in args.modes:
        compiling = {name(case): Peer(case, "compile", args.compile_mode) for case in rows}
        for row, peer in compiling.items():
            line = peer.answer(args.compile_limit - (time.monotonic() - begun))
            if line is None and peer.failed.startswith("cut"):
                peer.failed = f"cut at {args.compile_limit:.0f} s"
            built = f"after {line['seconds']} s" if line else f"not: {peer.failed}"
            print(f"{row} compiled {built}", file=sys.stderr, flush=True)
    print(f"{datetime.date.today()}, `{shlex.join(['gpu_table.py', *sys.argv[1:]])}`; torch.compile's mode: {args.compile_mode}\n")
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    missed = []
    for case in rows:
        peers = {"compile": compiling.pop(name(case))} if compiling else {}
        try:
            cells, short = measure(args, case, peers)
        finally:
            for peer in peers.values():
                peer.end()
        print(f"| {' | '.join(cells)} |", flush=True)
        missed += short
    print(f"\n{time.monotonic() - begun:.0f} s in all")
    for line in missed:
        print(f"short: {line}")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
