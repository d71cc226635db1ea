#!/usr/bin/env python3
"""How often each kind of finding is named: when its cause is planted, and when nothing is.

    peers/calibrate.py simulated --noise FILE [FILE...]   runs on the simulated engine, with the noise of recorded runs
    peers/calibrate.py real                               runs on this machine, disturbed by busy loops, quotas and a slow rank
    peers/calibrate.py noise STUDY --out FILE             the noise of a recorded, undisturbed case, for --simulate noise=FILE

Prints a Markdown table. PACELINE names the program (default: target/release/paceline).
"""

import argparse
import collections
import concurrent.futures
import json
import os
import random
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib

PACELINE = os.environ.get("PACELINE", "target/release/paceline")
STEPS, WORKERS, STEP_MS = 200, 4, 50.8

# Kind, and the words that plant a cause which takes the fraction f of the workers' time on four workers. The simulated step takes
# about 50.8 ms; g is the time to add for one unit of time that there is.
PLANTED = {
    "start_up": lambda f, g: f"init={g * STEPS * STEP_MS:.1f}",
    "warm_up": lambda f, g: f"warmup=20:{1 + g * STEPS / 10:.3f}",
    "off_core": lambda f, g: f"off_core={f:.4f}",
    "computation": lambda f, g: f"contention={g / (WORKERS - 1):.4f}",
    "input": lambda f, g: f"load={g * STEP_MS:.3f}",
    "communication": lambda f, g: f"bandwidth={13.6 / (g * STEP_MS):.4f}",
    "stragglers": lambda f, g: f"straggler=1:{1 + f / (0.75 - f):.4f}",
    "update": lambda f, g: f"update_contention={g * STEP_MS / 0.45 / (WORKERS - 1):.3f}",
    "evaluation": lambda f, g: f"eval=20:{g * 20 * STEP_MS:.1f}",
    "tail": lambda f, g: f"tail={g * STEPS * STEP_MS:.1f}",
    "other": lambda f, g: f"other={g * STEP_MS:.3f}",
    "slowdown": lambda f, g: f"slowdown={STEPS // 2}:{1 + 2 * g:.4f}",
}


def run(arguments, timeout=600, prefix=()):
    """The report of a study, as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*prefix, PACELINE, "bench", *arguments, "--json", "--out", os.path.join(folder, "study")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: {done.stderr}")
        return json.loads(done.stdout)


def cost(report, kind):
    """Fraction of the workers' time that a cause takes in the largest case; None where the report has no number for it."""
    case = max(report["cases"], key=lambda case: case["workers"])
    whole = case["workers"] * case["total_s"]
    phases, split = case["phases_s"], case["comm_wait_split_s"]
    if kind == "off_core":
        return case["off_core"]["seconds"] / whole if case["off_core"] else None
    if kind in ("computation", "update"):
        fall = next((fall for fall in report["explained"][0]["waterfalls"] if fall["workers"] == case["workers"]), None)
        share = next((share for share in fall["shares"] if share["cause"] == kind), None) if fall else None
        return share["seconds"] / fall["to_s"] if share else None
    seconds = {
        "start_up": lambda: phases["launch"] + phases["init"],
        "input": lambda: phases["load"] + phases["copy_in"] + phases["copy_out"],
        "communication": lambda: split["transfer"] + phases["comm_cpu"],
        "stragglers": lambda: split["late_rank"],
        "evaluation": lambda: phases["eval"] + phases["checkpoint"],
        "tail": lambda: phases["tail"],
        "other": lambda: phases["other"],
    }.get(kind)
    return seconds() / whole if seconds else None


def kinds(report):
    return {finding["kind"] for finding in report["findings"]}


def is_true(report, kind):
    """Whether a finding that nobody planted says what is so: ranks with real noise do wait for each other, and that the rate is
    uncertain is a statement about the noise."""
    if kind == "stragglers":
        texts = [finding["text"] for finding in report["findings"] if finding["kind"] == kind]
        blamed = any("% of it for" in text and "was the latest in only" not in text for text in texts)
        return not blamed and cost(report, kind) >= 0.045
    return kind in ("uncertain", "noisy")


def simulated(options):
    def study(seed, planted, noise):
        words = ",".join(filter(None, [f"noise={noise}", "jitter=0", planted]))
        return run(["mobilenet_v2", "--engine", "simulated", "--workers", f"1,{WORKERS}", "--threads", "1",
                    "--overlap", "no", "--steps", str(STEPS), "--seed", str(seed), "--simulate", words])

    draw = random.Random(1)
    pool = concurrent.futures.ThreadPoolExecutor(options.jobs)
    files = options.noise
    def invented_in(seed):
        """What is named although it takes less than the reports say, by the simulation's own account."""
        report = study(seed, "", files[seed % len(files)])
        return {kind for kind in kinds(report) if not is_true(report, kind)}

    calm = list(pool.map(invented_in, range(options.runs)))
    invented = collections.Counter(kind for found in calm for kind in found)
    print(f"{options.runs} undisturbed runs of {STEPS} steps on 1 and {WORKERS} workers, noise of {len(files)} recorded runs: "
          f"{sum(map(bool, calm))} with a finding that is not so; {dict(invented) or 'none'}\n")
    print("| finding | planted with | cost, % of the workers' time | named | others named | named when not planted |")
    print("|---|---|---|---:|---|---:|")
    for kind, words in PLANTED.items():
        # Waiting, which comes with the noise, makes the whole larger: what is planted as 5.5 % takes about 5 % of it.
        fractions = [draw.uniform(0.055, 0.11) for _ in range(options.planted)]

        def one(seed):
            fraction = fractions[seed]
            return study(10_000 + seed, words(fraction, fraction / (1 - fraction)), files[seed % len(files)])

        reports = list(pool.map(one, range(options.planted)))
        named = sum(kind in kinds(report) for report in reports)
        others = collections.Counter(other for report in reports for other in kinds(report)
                                     if other != kind and not (other == "stragglers" and is_true(report, other)))
        costs = [value for report in reports if (value := cost(report, kind)) is not None]
        spread = f"{100 * min(costs):.1f} .. {100 * max(costs):.1f}" if costs else "5.5 .. 11, as planted"
        example = words(0.05, 0.05 / 0.95).split("=")[0]
        print(f"| `{kind}` | `{example}` | {spread} | {100 * named / len(reports):.1f} % | "
              f"{', '.join(f'{other} {count}' for other, count in others.items()) or '-'} | {invented[kind]} of {options.runs} |",
              flush=True)


class Loops:
    """Busy loops on some cores, until they are left."""

    def __init__(self, cores, each=1):
        self.cores = [core for core in cores for _ in range(each)]

    def __enter__(self):
        self.children = [subprocess.Popen(["taskset", "-c", str(core), "sh", "-c", "while :; do :; done"])
                         for core in self.cores]
        time.sleep(0.2)

    def __exit__(self, *_):
        for child in self.children:
            child.kill()
            child.wait()


class Quota:
    """A control group with a quota in cores, whichever version the system has; None as a prefix where nobody may make one."""

    def __init__(self, cores):
        self.cores = cores

    def __enter__(self):
        name = f"paceline-calibrate-{os.getpid()}"
        for mount, file, limit in [("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", f"{int(1e5 * self.cores)}"),
                                   ("/sys/fs/cgroup", "cpu.max", f"{int(1e5 * self.cores)} 100000")]:
            self.path = os.path.join(mount, name)
            try:
                os.mkdir(self.path)
                with open(os.path.join(self.path, file), "w") as out:
                    out.write(limit)
                return ["sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$@"', "sh"]
            except OSError:
                if os.path.isdir(self.path):
                    os.rmdir(self.path)
        self.path = None
        return None

    def __exit__(self, *_):
        for _ in range(100):
            try:
                return self.path and os.rmdir(self.path)
            except OSError:
                time.sleep(0.05)


def stop_and_go(pid, stop_s, every_s, until):
    """Stops a process for a while, again and again: a rank that is slower than the others."""
    while not until():
        try:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(stop_s)
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return
        time.sleep(every_s - stop_s)


def real(options):
    cores = sorted(os.sched_getaffinity(0))[: options.workers]
    workers = f"1,{len(cores)}"
    base = [options.model, "--workers", workers, "--threads", "1", "--steps", str(options.steps)]
    experiments = {
        "nothing": lambda: run(base),
        "a busy loop on each core": lambda: within(Loops(cores), base),
        "a busy loop on one core": lambda: within(Loops(cores[-1:]), base),
        "a quota of 0.6 cores a worker": lambda: with_quota(0.6 * len(cores), base),
        "one worker stopped for 10 ms in every 40": lambda: run_and(base, stop_last_worker),
        "pictures of 480x480 that one thread decodes": lambda: with_pictures(base),
    }
    print(f"`{options.model}`, {workers} workers, {options.steps} steps, {options.rounds} rounds in turns\n")
    print("| disturbed by | rounds | findings, with the median cost |")
    print("|---|---:|---|")
    results = {name: [] for name in experiments}
    for _ in range(options.rounds):
        for name, make in experiments.items():
            report = make()
            if report:
                results[name].append(report)
    for name, reports in results.items():
        found = collections.defaultdict(list)
        for report in reports:
            for finding in report["findings"]:
                found[finding["kind"]].append(finding["share"])
        told = []
        for kind, shares in sorted(found.items(), key=lambda item: -len(item[1])):
            known = [share for share in shares if share is not None]
            size = f" ({100 * statistics.median(known):.0f} %)" if known else ""
            told.append(f"{kind} {len(shares)} of {len(reports)}{size}")
        print(f"| {name} | {len(reports)} | {', '.join(told) or 'none'} |", flush=True)
    if options.keep:
        with open(options.keep, "w") as out:
            json.dump({name: [report["findings"] for report in reports] for name, reports in results.items()}, out, indent=1)


def run_and(arguments, meanwhile):
    """As `run`, with something done to the process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [PACELINE, "bench", *arguments, "--json", "--out", os.path.join(folder, "study")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        helper = threading.Thread(target=meanwhile, args=(process.pid, lambda: process.poll() is not None))
        helper.start()
        told, _ = process.communicate()
        helper.join()
        return json.loads(told)


def stop_last_worker(pid, over):
    """Of each case with several workers, the one started last."""
    while not over():
        try:
            with open(f"/proc/{pid}/task/{pid}/children") as file:
                workers = [int(word) for word in file.read().split()]
        except OSError:
            return
        if len(workers) > 1:
            stop_and_go(workers[-1], 0.010, 0.040, lambda: over() or not os.path.exists(f"/proc/{workers[-1]}"))
        time.sleep(0.01)


def with_pictures(arguments):
    """Pictures of noise, as large as a decoder finds hard."""
    with tempfile.TemporaryDirectory() as folder:
        side, draw = 480, random.Random(1)
        rows = b"".join(b"\0" + draw.randbytes(3 * side) for _ in range(side))

        def chunk(kind, body):
            return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

        head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
        png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")
        for part, count in (("train", 2048), ("test", 8)):
            for number in range(count):
                place = os.path.join(folder, part, f"class{number % 2}")
                os.makedirs(place, exist_ok=True)
                with open(os.path.join(place, f"{number}.png"), "wb") as file:
                    file.write(png)
        return run([*arguments, "--data", f"images:{folder}", "--input", "32x32"])


def within(disturbance, arguments):
    with disturbance:
        return run(arguments)


def with_quota(cores, arguments):
    with Quota(cores) as prefix:
        return run(arguments, prefix=prefix) if prefix else None


def noise(options):
    """Of each rank and step, the time of forward and backward over its mean, warm-up left out; with --level, over the median of the
    steps around it, so that the noise has no slow changes of level: those are disturbances by others."""
    columns = []
    for name in sorted(os.listdir(options.study), key=lambda name: (len(name), name)):
        if name.startswith("rank-") and name.endswith(".jsonl"):
            with open(os.path.join(options.study, name)) as lines:
                steps = [record["step"] for record in map(json.loads, lines) if "step" in record]
            times = [step["phases"]["forward"] + step["phases"]["backward"] for step in steps[options.skip:]]
            columns.append(times)
    write_noise(columns[: options.ranks], options.level, options.out)


def write_noise(columns, level, out):
    columns = [flatten(times, level) for times in columns]
    with open(out, "w") as file:
        for row in zip(*columns):
            file.write(" ".join(f"{factor:.4f}" for factor in row) + "\n")


def flatten(times, level):
    """Factors with the mean 1."""
    if level:
        around = [statistics.median(times[max(0, at - level // 2): at + level // 2 + 1]) for at in range(len(times))]
        times = [time / middle for time, middle in zip(times, around)]
    mean = statistics.fmean(times)
    return [time / mean for time in times]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("simulated")
    one.add_argument("--noise", nargs="+", required=True)
    one.add_argument("--runs", type=int, default=1000)
    one.add_argument("--planted", type=int, default=200)
    one.add_argument("--jobs", type=int, default=os.cpu_count())
    two = commands.add_parser("real")
    two.add_argument("--model", default="mobilenet_v2")
    two.add_argument("--workers", type=int, default=os.cpu_count())
    two.add_argument("--steps", type=int, default=60)
    two.add_argument("--rounds", type=int, default=3)
    two.add_argument("--keep", help="a file for all findings")
    three = commands.add_parser("noise")
    three.add_argument("study", help="a case's folder")
    three.add_argument("--out", required=True)
    three.add_argument("--level", type=int, default=0, help="steps around one that make its level")
    three.add_argument("--ranks", type=int, default=16, help="ranks to write")
    three.add_argument("--skip", type=int, default=10, help="first steps to leave out")
    options = parser.parse_args()
    if not shutil.which(PACELINE):
        sys.exit(f"{PACELINE} is not there; build it with cargo build --release, or set PACELINE")
    {"simulated": simulated, "real": real, "noise": noise}[options.command](options)


if __name__ == "__main__":
    main()
