#!/usr/bin/env python3
"""What elastic training costs: the figures of docs/elastic.md.

    peers/elastic.py pairs [SECONDS]   undisturbed steps against allreduce and sharded, in turns, on every pair of cores
    peers/elastic.py workers [N]       N workers: strategies, static and dynamic deal, independent, and the synchronous ceiling
    peers/elastic.py kills [N...]      steps with a kill, detection and fence, joins, and a worker that hangs
    peers/elastic.py shards            four shards a worker against one
    peers/elastic.py slow              one of four workers at half speed, static and dynamic deal

PACELINE names the program (target/release/paceline). Nothing else should run on the machine.
"""
import glob
import hashlib
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

PROGRAM = os.environ.get("PACELINE", os.path.join(os.path.dirname(__file__), "..", "target", "release", "paceline"))
SCRATCH = tempfile.mkdtemp(prefix="paceline-elastic-")
NETWORKS = {"mobilenet_v2": 34, "resnet50": 7}  # and steps that take a few seconds
STRATEGIES = {"allreduce": "--update allreduce", "sharded": "--update sharded", "elastic": "--elastic"}


def records(folder):
    """All step records of all workers of the run in a folder."""
    for path in glob.glob(f"{folder}/*/rank-*.jsonl") + glob.glob(f"{folder}/*/member-*.jsonl"):
        for line in open(path):
            if line.startswith('{"step"'):
                yield json.loads(line)["step"]


def step_times(folder):
    """Seconds of each step: from the last worker's end of the step before to its end, without tests and checkpoints."""
    ends = {}
    for record in records(folder):
        pause = sum(record["phases"].get(phase, 0) for phase in ("eval", "checkpoint"))
        ends[record["step"]] = max(ends.get(record["step"], 0), record["end"] - pause)
    steps = sorted(ends)
    return {after: (ends[after] - ends[before]) / 1e9 for before, after in zip(steps, steps[1:])}


def run(command, name, arguments, cores=None):
    """Runs a study or a training; its folder."""
    folder = os.path.join(SCRATCH, name)
    shutil.rmtree(folder, ignore_errors=True)
    pin = ["taskset", "-c", cores] if cores else []
    words = [*pin, PROGRAM, command, *arguments.split(), "--threads", "1", "--out", folder, "--json"]
    done = subprocess.run(words, capture_output=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr.decode()[-600:]}")
    return folder


def measure(name, arguments, steps, cores=None, skip=2):
    """Mean step time and processor time of a step, without the first steps."""
    folder = run("bench", name, f"{arguments} --steps {steps}", cores)
    times = [seconds for step, seconds in step_times(folder).items() if step >= skip]
    used = sum((r.get("scheduling") or {}).get("process_cpu", 0) for r in records(folder) if r["step"] >= skip)
    return {"step": statistics.mean(times), "processor": used / 1e9 / len(times), "folder": folder}


def interval(ratios):
    """Mean of ratios with its 95 % interval, and their median."""
    mean, half = statistics.mean(ratios), 1.98 * statistics.stdev(ratios) / math.sqrt(len(ratios))
    return f"{mean:.4f} [{mean - half:.4f}, {mean + half:.4f}], median {statistics.median(ratios):.4f}"


def pairs(seconds=380):
    """Rounds of all strategies in random order, until the time is over, on all pairs of cores at once."""
    rounds, lock = [], threading.Lock()

    def work(slot):
        draw, begun = random.Random(slot), time.time()
        while time.time() - begun < float(seconds):
            for network, steps in NETWORKS.items():
                result = {}
                for strategy in draw.sample(list(STRATEGIES), len(STRATEGIES)):
                    arguments = f"{network} --workers 2 {STRATEGIES[strategy]}"
                    result[strategy] = measure(f"{slot}-{strategy}", arguments, steps, f"{2 * slot},{2 * slot + 1}")
                with lock:
                    rounds.append((network, result))

    slots = [threading.Thread(target=work, args=(slot,)) for slot in range(max(1, (os.cpu_count() or 2) // 2))]
    [slot.start() for slot in slots]
    [slot.join() for slot in slots]
    for network in NETWORKS:
        results = [result for name, result in rounds if name == network]
        for other in ("allreduce", "sharded"):
            for what in ("step", "processor"):
                ratios = [result["elastic"][what] / result[other][what] for result in results]
                print(f"{network}: {what} time relative to {other}, {len(ratios)} rounds: {interval(ratios)}")


def workers(count=16):
    """All strategies on so many workers."""
    kinds = {**STRATEGIES, "dynamic": "--elastic --deal dynamic", "independent": "--update independent"}
    kinds["elastic, 4 shards each"] = f"--elastic --shards {4 * int(count)}"
    kinds["dynamic, 4 shards each"] = f"--elastic --deal dynamic --shards {4 * int(count)}"
    for network, steps in NETWORKS.items():
        for kind, options in kinds.items():
            result = measure("workers", f"{network} --workers {count} {options}", steps)
            print(f"{network} on {count} workers, {kind}: {1000 * result['step']:.1f} ms")
            if kind == "independent":
                own = {}
                for record in records(result["folder"]):
                    phases = record["phases"]
                    time_of = sum(phases.get(phase, 0) for phase in ("load", "copy_in", "forward", "backward"))
                    own.setdefault(record["step"], []).append(time_of / 1e6)
                slowest = statistics.mean(max(times) for step, times in own.items() if step >= 2)
                print(f"{network} on {count} workers, synchronous ceiling: {slowest:.1f} ms")


def events(folder):
    """The launcher's recovery phases in ms, by roster, and its member events."""
    phases, members = {}, []
    for line in open(glob.glob(f"{folder}/*/launcher.jsonl")[-1]):
        event = json.loads(line)
        if "recovery" in event:
            phase = event["recovery"]
            phases.setdefault(phase["generation"], {})[phase["phase"]] = round((phase["end"] - phase["begin"]) / 1e6, 1)
        members += [event["member"]] if "member" in event else []
    return phases, members


def train(name, arguments, steps):
    return run("train", name, f"{arguments} --steps {steps} --eval-every 0 --checkpoint-every 0")


def kills(*counts):
    """Two kills in a training, one join, one hang."""
    for network, steps in (("mobilenet_v2", 60), ("resnet50", 24)):
        for count in counts or ("2", "8", "16"):
            first, second = steps // 3, 2 * steps // 3
            options = f"{network} --workers {count} --elastic --faults kill=1@{first},kill=0@{second}"
            folder = train("kills", options, steps)
            times, (phases, _) = step_times(folder), events(folder)
            usual = statistics.median(seconds for step, seconds in times.items() if 3 <= step < first)
            struck = ", ".join(f"{1000 * times[step]:.0f}" for step in (first, second))
            print(f"{network} on {count} workers: usual step {1000 * usual:.0f} ms, with a kill {struck} ms; {phases}")
            one_more = f"{network} --global-batch {64 * int(count)} --workers {int(count) - 1} --elastic 1:{count}"
            folder = train("joins", f"{one_more} --shards {count} --faults join@{first}", steps)
            stalls = [r["phases"].get("recovery", 0) / 1e6 for r in records(folder) if r["step"] >= 2]
            print(f"{network} on {count} workers: a join held others up by {max(stalls, default=0):.1f} ms at most")
    folder = train("hang", "mobilenet_v2 --workers 4 --elastic --faults stop=1@40:60s", 80)
    print("a worker that hangs:", events(folder)[0])


def shards():
    """Four shards a worker against one, on four workers."""
    for network, steps in NETWORKS.items():
        for options in ("", "--elastic"):
            one = measure("one", f"{network} --workers 4 --global-batch 256 --shards 4 {options}", steps)
            four = measure("four", f"{network} --workers 4 --global-batch 256 --shards 16 {options}", steps)
            same = measure("same", f"{network} --workers 4 --global-batch 1024 --shards 16 {options}", max(5, steps // 3))
            print(
                f"{network} {options or 'plain'}: step at the same global batch {four['step'] / one['step']:.3f}, "
                f"images/s at the same batch per shard {4 * one['step'] / same['step']:.3f}"
            )


def slow():
    """One of four workers at half speed."""
    rates, bits = {}, set()
    for deal in ("static", "dynamic"):
        options = f"mobilenet_v2 --workers 4 --shards 16 --elastic --deal {deal} --faults slow=0@2:2"
        folder = train("slow", options, 60)
        times = [seconds for step, seconds in step_times(folder).items() if step > 5]
        rates[deal] = 256 / statistics.mean(times)
        bits.add(hashlib.sha256(open(f"{folder}/weights.safetensors", "rb").read()).hexdigest())
    ratio = rates["dynamic"] / rates["static"]
    print(f"images/s: {rates}; dynamic is {ratio:.2f} times static; {'same' if len(bits) == 1 else 'OTHER'} bits")


if __name__ == "__main__":
    parts = {"pairs": pairs, "workers": workers, "kills": kills, "shards": shards, "slow": slow}
    if len(sys.argv) < 2 or sys.argv[1] not in parts:
        sys.exit(__doc__)
    try:
        parts[sys.argv[1]](*sys.argv[2:])
    finally:
        shutil.rmtree(SCRATCH, ignore_errors=True)
