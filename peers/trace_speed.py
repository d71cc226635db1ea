"""Reads one PyTorch trace with HolisticTraceAnalysis and with Paceline in turns, on one core, and prints the ratio.

    pip install HolisticTraceAnalysis==0.5.0
    cargo build --release -p paceline-import --example kineto_speed
    taskset -c 0 python3 peers/trace_speed.py TRACE.json.gz --copies 12

The trace's events are repeated, one copy after the other, into a plain file that both read.
"""

import argparse
import contextlib
import gzip
import io
import json
import logging
import os
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

READER = pathlib.Path(__file__).parent.parent / "target/release/examples/kineto_speed"


def repeat(source, copies, path):
    opened = gzip.open(source, "rt") if source.endswith(".gz") else open(source)
    with opened as file:
        trace = json.load(file)
    times = [event["ts"] for event in trace["traceEvents"] if "ts" in event and event.get("ph") != "M"]
    span = max(times) - min(times) + 1000
    events = []
    for copy in range(copies):
        for event in trace["traceEvents"]:
            moved = "ts" in event and event.get("ph") != "M"
            events.append({**event, "ts": event["ts"] + copy * span} if moved else event)
    with open(path, "w") as file:
        json.dump({**trace, "traceEvents": events}, file)


def time_holistic(path):
    from hta.trace_analysis import TraceAnalysis

    logging.disable(logging.CRITICAL)
    with contextlib.redirect_stdout(io.StringIO()):
        began = time.perf_counter()
        TraceAnalysis(trace_files={0: str(path)}, trace_dir=str(path.parent))
        return time.perf_counter() - began


def time_paceline(path):
    command = [READER, "--file", path, "--rounds", "1"]
    said = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(re.search(r"([\d.]+) s for", said.stdout + said.stderr).group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--copies", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "rank0.json")
        repeat(options.trace, options.copies, path)
        rounds = [(time_holistic(path), time_paceline(path)) for _ in range(options.rounds)]
        size = os.path.getsize(path) / 1e6
    theirs, ours = (statistics.median(times) for times in zip(*rounds))
    ratios = [theirs / ours for theirs, ours in rounds]
    print(f"{size:.0f} MB: HolisticTraceAnalysis {theirs:.2f} s, Paceline {ours:.2f} s, "
          f"ratio {statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})")


if __name__ == "__main__":
    main()
