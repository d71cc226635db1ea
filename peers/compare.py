#!/usr/bin/env python3
"""Runs PyTorch in both layouts and Paceline in turns and prints the ratio; `peers/compare` prepares both and calls this.

Each row of the table is one network at one input size and batch. PyTorch's processes stay alive and wait while another
one runs; Paceline is a new process each round. In a round all of them time the same number of steps, so what slows the
machine for a while slows all of them, and the ratio is taken round by round.

With `--precision bf16`, PyTorch runs in fp32 and with autocast to bf16, and Paceline in fp32 and in bf16; the ratio is
that of Paceline's bf16 to whatever is PyTorch's best. `--modes eager,compile` adds torch.compile to each of PyTorch's.
Only those that reach 85 % of the best in one round before the others go on to the rounds that count. One that dies, of an
instruction that is illegal here or for want of a compiler, is left out, and a line under the table says so.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile

PEERS = pathlib.Path(__file__).resolve().parent
ROOT = PEERS.parent

ROWS = [
    # network, input, batch
    ("resnet50", "32x32", 64),
    ("mobilenet_v2", "32x32", 64),
    ("vgg_19", "32x32", 64),
    ("resnet50", "224x224", 8),
]

PACELINE_WARMUP = 2  # steps that Paceline's report leaves out of its rate


class Failure(Exception):
    pass


class Ended(Exception):
    """One of PyTorch's processes is of no more use; says why."""


class Torch:
    """A torch_train.py that waits for rounds. It compiles and warms up on any core, beside others, and is then kept on its own."""

    def __init__(self, row, variant, options):
        network, size, batch = row
        layout, precision, mode = variant
        command = [sys.executable, str(PEERS / "torch_train.py"), network, "--serve", "--flush-denormals"]
        command += ["--input", size, "--batch", str(batch), "--threads", str(options.threads), "--layout", layout]
        command += ["--precision", precision] + (["--compile"] if mode == "compile" else [])
        self.command = " ".join(command)
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.cores = cores(options)

    def wait(self):
        if self.read() != "ready":
            raise Ended("did not get ready")
        for thread in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), self.cores)

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            status = self.process.wait()
            raise Ended(f"ended with {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}")
        return line.strip()

    def run(self, steps):
        with contextlib.suppress(BrokenPipeError):  # reading tells how it ended
            self.process.stdin.write(f"{steps}\n")
            self.process.stdin.flush()
        return json.loads(self.read())

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


def run_paceline(row, options, precision, steps):
    """One `paceline bench`; its report's only case."""
    network, size, batch = row
    with tempfile.TemporaryDirectory() as folder:
        command = [str(options.paceline), "bench", network, "--workers", "1"]
        command += ["--threads", str(options.threads), "--batch", str(batch), "--input", size, "--classes", "10"]
        command += ["--precision", precision]
        if options.instructions and precision == "bf16":
            command += ["--instructions", options.instructions]
        command += ["--steps", str(steps + PACELINE_WARMUP), "--out", os.path.join(folder, "study"), "--fresh", "--json"]
        pin = lambda: os.sched_setaffinity(0, cores(options))
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=pin)
    if result.returncode != 0:
        raise Failure(f"{' '.join(command)} ended with status {result.returncode}:\n{result.stderr.strip()}")
    case = json.loads(result.stdout)["cases"][0]
    return {
        "images_per_s": case["images_per_s"]["median"],
        "peak_memory_bytes": case["peak_memory_bytes"]["per_worker"],
        "init_s": case["init_s"],
    }


def cores(options):
    """What all of them run on: as many as they have threads."""
    return set(range(options.core, options.core + options.threads))


def measure(row, options):
    """All rounds of a row: for each contender, what it reported, round by round; and how each that was left out ended."""
    where = f"{row[0]} {row[1]}"
    torches = {}
    ended = {}

    def attempt(name, act, *arguments):
        """What a contender gives; `None` if it is one of PyTorch's and ended, which leaves it out from now on."""
        try:
            return act(*arguments)
        except Ended as end:
            progress("")
            print(f"compare: {where}: {name} {end}: {torches[name].command}", file=sys.stderr)
            torches.pop(name).close()
            ended[name] = str(end)
        if not torches:
            raise Failure(f"{where}: none of PyTorch's is left: " + ", ".join(f"{name} {how}" for name, how in ended.items()))

    try:
        progress(f"{where}: PyTorch gets ready")
        for variant in variants(options):
            torches[name_of(variant)] = Torch(row, variant, options)
        for name, torch in list(torches.items()):
            attempt(name, torch.wait)
        if len(torches) > 2:
            progress(f"{where}: which of PyTorch's are worth the rounds")
            first = {name: attempt(name, torch.run, 2) for name, torch in list(torches.items())}
            speed = {name: result["images_per_s"] for name, result in first.items() if result}
            for name in [name for name in speed if speed[name] < 0.85 * max(speed.values())]:
                torches.pop(name).close()
        contenders = {name: torch.run for name, torch in torches.items()}
        if options.paceline and options.precision == "bf16":
            contenders["paceline fp32"] = lambda steps: run_paceline(row, options, "fp32", steps)
        if options.paceline:
            contenders["paceline"] = lambda steps: run_paceline(row, options, options.precision, steps)
        rounds = {name: [] for name in contenders}
        names = list(contenders)
        for number in range(options.rounds):
            for name in names:
                if name not in ended:
                    progress(f"{where}: round {number + 1} of {options.rounds}, {name}")
                    rounds[name].append(attempt(name, contenders[name], options.steps))
            names = names[1:] + names[:1]  # another one goes first in the next round
    finally:
        progress("")
        for torch in torches.values():
            torch.close()
    return {name: results for name, results in rounds.items() if name not in ended}, ended


def variants(options):
    """PyTorch's contenders: layout, precision, mode."""
    precisions = ["fp32"] if options.precision == "fp32" else ["fp32", "bf16"]
    return [(layout, p, mode) for mode in options.modes for p in precisions for layout in ("nchw", "nhwc")]


def name_of(variant):
    layout, precision, mode = variant
    return layout + (f" {precision}" if precision != "fp32" else "") + (f" {mode}" if mode != "eager" else "")


def progress(text):
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def summarise(row, rounds, ended):
    """A row's numbers: medians over rounds, and the ratio to PyTorch's best with its extremes."""
    speed = {name: statistics.median(r["images_per_s"] for r in results) for name, results in rounds.items()}
    memory = {name: max(r["peak_memory_bytes"] for r in results) for name, results in rounds.items()}
    better = max((name for name in rounds if not name.startswith("paceline")), key=speed.get)
    summary = {
        "network": row[0],
        "input": row[1],
        "batch": row[2],
        "images_per_s": speed,
        "better": better,
        "peak_memory_bytes": memory,
        "torch_import_memory_bytes": rounds[better][0]["import_memory_bytes"],
        "torch": rounds[better][0]["torch"],
        "params": rounds[better][0]["params"],
        "ended": ended,
        "rounds": rounds,
    }
    if "paceline" in rounds:
        ratios = [ours["images_per_s"] / theirs["images_per_s"] for ours, theirs in zip(rounds["paceline"], rounds[better])]
        summary["ratio"] = {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
        summary["memory_ratio"] = memory["paceline"] / memory[better]
        summary["init_s"] = statistics.median(r["init_s"] for r in rounds["paceline"])
    if "paceline fp32" in rounds:
        pairs = zip(rounds["paceline"], rounds["paceline fp32"])
        ratios = [ours["images_per_s"] / before["images_per_s"] for ours, before in pairs]
        summary["ratio_to_fp32"] = {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
    return summary


def describe(summary):
    """A row in one line: all that took part in its rounds."""
    speeds = ", ".join(f"{name} {speed:.1f}" for name, speed in summary["images_per_s"].items())
    return f"{summary['network']} {summary['input']}: {speeds} images/s"


def render_best(summaries, options):
    """The best of PyTorch's beside ours."""
    mb = lambda count: f"{count / 1e6:.0f}"
    span = lambda ratio: f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})"
    ours = {"paceline fp32": "paceline fp32", "paceline": f"paceline {options.precision}"}
    ours = {name: head for name, head in ours.items() if name in summaries[0]["rounds"]}
    ratios = {"ratio": "to torch", "ratio_to_fp32": "to fp32"}
    ratios = {name: head for name, head in ratios.items() if name in summaries[0]}
    heads = ["network", "input", "batch", "torch's best", "images/s", *ours.values(), *ratios.values()]
    lines = [heads + ["torch MB"] + [f"{head} MB" for head in ours.values()]]
    for s in summaries:
        shown = [s["better"], *ours]
        line = [s["network"], s["input"], str(s["batch"]), s["better"], *(f"{s['images_per_s'][name]:.1f}" for name in shown)]
        lines.append(line + [span(s[name]) for name in ratios] + [mb(s["peak_memory_bytes"][name]) for name in shown])
    lost = [f"{s['network']} {s['input']}: {name} {how}" for s in summaries for name, how in s["ended"].items()]
    return "\n".join(align(lines, 2) + ["", *(f"left out: {line}" for line in lost)] + [
        f"images/s, median of {options.rounds} rounds of {options.steps} steps, {options.threads} thread(s), PyTorch "
        f"{summaries[0]['torch']}; ratios round by round. MB: peak resident.",
    ])


def align(lines, left):
    """Columns of equal width; the first ones lean left."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    cells = lambda line: [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))]
    return ["  ".join(cells(line)) for line in lines]


def render(summaries, options):
    if options.precision == "bf16" or options.modes != ["eager"] or any(s["ended"] for s in summaries):
        return render_best(summaries, options)
    heads = ["network", "input", "batch", "torch nchw", "torch nhwc", "paceline", "ratio", "min to max"]
    heads += ["torch MB", "(library)", "paceline MB", "MB ratio", "start s"]
    lines = [heads]
    for s in summaries:
        speed, memory = s["images_per_s"], s["peak_memory_bytes"]
        mb = lambda count: f"{count / 1e6:.0f}"
        line = [s["network"], s["input"], str(s["batch"]), f"{speed['nchw']:.1f}", f"{speed['nhwc']:.1f}"]
        theirs = [mb(memory[s["better"]]), f"({mb(s['torch_import_memory_bytes'])})"]
        if "ratio" in s:
            ratio = s["ratio"]
            line += [f"{speed['paceline']:.1f}", f"{ratio['median']:.2f}", f"{ratio['min']:.2f} to {ratio['max']:.2f}"]
            line += theirs + [mb(memory["paceline"]), f"{s['memory_ratio']:.2f}", f"{s['init_s']:.2f}"]
        else:
            line += ["-"] * 3 + theirs + ["-"] * 3
        lines.append(line)
    text = align(lines, 2)
    text.append("")
    text.append(
        f"images/s, median of {options.rounds} rounds of {options.steps} steps, {options.threads} thread(s), PyTorch "
        f"{summaries[0]['torch']}; ratio to PyTorch's better layout, round by round."
    )
    text.append("MB: peak resident; (library): what PyTorch takes before it has a network. start s: process start to first step.")
    return "\n".join(text)


def positive(text):
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive number")
    return int(text)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [f"{network}@{size}" for network, size, _ in ROWS]
    parser.add_argument(
        "--networks", default=",".join(names), metavar="A,B", help=f"rows, by network or network@input ({', '.join(names)})"
    )
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="of Paceline (fp32)")
    parser.add_argument("--modes", default="eager", metavar="A,B", help="of PyTorch: eager, compile (eager)")
    parser.add_argument("--instructions", metavar="SET", help="instruction set of Paceline's bf16 (the best)")
    parser.add_argument("--rounds", type=positive, default=5, help="rounds a row (5)")
    parser.add_argument("--steps", type=positive, default=8, help="timed steps a round (8)")
    parser.add_argument("--threads", type=positive, default=1, help="threads of each (1)")
    parser.add_argument("--core", type=int, default=0, help="first core to pin to (0)")
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    parser.add_argument("--paceline", type=pathlib.Path, default=target / "release" / "paceline", help="the program to run")
    parser.add_argument("--no-paceline", action="store_const", const=None, dest="paceline", help="PyTorch alone")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="also write all numbers here")
    options = parser.parse_args()

    options.modes = options.modes.split(",")
    for mode in options.modes:
        if mode not in ("eager", "compile"):
            parser.error(f"unknown mode '{mode}'; there are eager and compile")
    wanted = options.networks.split(",")
    for name in wanted:
        if not any(name in (network, f"{network}@{size}") for network, size, _ in ROWS):
            parser.error(f"unknown row '{name}'; there are {', '.join(names)}")
    options.rows = [row for row in ROWS if row[0] in wanted or f"{row[0]}@{row[1]}" in wanted]
    if options.paceline and not os.access(options.paceline, os.X_OK):
        parser.error(f"{options.paceline} is not there; build it with `cargo build --release`, or use --no-paceline")
    return options


def main():
    options = parse_args()
    summaries = []
    try:
        for row in options.rows:
            summaries.append(summarise(row, *measure(row, options)))
            if options.json:
                options.json.write_text(json.dumps(summaries, indent=1) + "\n")
            print(describe(summaries[-1]), flush=True)
    except Failure as failure:
        sys.exit(f"compare: {failure}")
    finally:  # a table of what there is, however it ends
        if summaries:
            print("\n" + render(summaries, options))


if __name__ == "__main__":
    main()
