#!/usr/bin/env python3
"""Workers with a fraction of a processor each, as pods with a limit have it: the tables of docs/cases/fractional-processors.md.

    peers/quota.py minikube [NETWORK...]   1 to 3 workers with 0.3 processors each
    peers/quota.py cluster [NETWORK...]    1, 2, 4 and 8 workers with 0.2 processors each, a stand-in for the published 4: eight fit two cores
    peers/quota.py free [NETWORK...]       one worker without a limit, for comparison

Each worker is a host of its own (--hosts N over loopback), with a launcher and a porter, in a control group with that quota and the highest
weight. Needs root and groups of either version. PACELINE names the program (target/release/paceline), KEEP a folder where studies stay. Nothing else should run on
the machine.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("PACELINE", ROOT / "target/release/paceline")
STEPS = {"mobilenet_v2": 25, "resnet50": 24}
PERIOD_US = 100_000  # what Kubernetes uses
PATIENCE_S = 400
# Processors of each worker, and the published images/s of each network by workers. Each of `cluster` had 4 processors there, more than a machine
# with two cores has.
SETTINGS = {
    "minikube": (0.3, {"mobilenet_v2": {1: 29, 2: 44.7, 3: 57.2}, "resnet50": {1: 3.1, 2: 5.65}}),
    "cluster": (0.2, {"mobilenet_v2": {1: 353.6, 2: 503, 4: 680, 8: 648}, "resnet50": {1: 26.7, 2: 41, 4: 68.4, 8: 123}}),
    "free": (None, {"mobilenet_v2": {1: None}, "resnet50": {1: None}}),
}


class Group:
    """A control group with so many processors, which it gets before others; gone at the end."""

    def __init__(self, number, processors):
        first = pathlib.Path("/sys/fs/cgroup/cpu")
        self.path = (first if first.is_dir() else first.parent) / f"paceline-quota-{os.getpid()}-{number}"
        self.path.mkdir()
        quota = round(processors * PERIOD_US)
        if first.is_dir():
            (self.path / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self.path / "cpu.cfs_quota_us").write_text(str(quota))
            (self.path / "cpu.shares").write_text("262144")
        else:
            (self.path / "cpu.max").write_text(f"{quota} {PERIOD_US}")
            (self.path / "cpu.weight").write_text("10000")

    def enter(self):
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def close(self):
        for _ in range(100):
            try:
                return self.path.rmdir()
            except OSError:
                time.sleep(0.05)  # its last process is not forgotten yet
        raise SystemExit(f"{self.path} cannot be removed")


def measure(network, workers, processors, folder):
    """The case of a study with so many workers, and what was found."""
    groups = [Group(number, processors) for number in range(workers)] if processors else []
    environment = {**os.environ, "PACELINE_SECRET": "a secret for measurements, of no value"}
    command = [PROGRAM, "bench", network, "--batch", "64", "--workers", "1", "--threads", "1", "--pin", "no", "--steps", STEPS[network]]
    if workers > 1:
        command += ["--hosts", workers, "--rendezvous", f"tcp://127.0.0.1:{29000 + os.getpid() % 900}", "--lease", "10"]
    launchers = []
    try:
        for number in range(workers):
            out = folder if number == 0 else folder.with_name(f"{folder.name}-{number}")
            with open(folder.with_name(f"{folder.name}-{number}.log"), "wb") as log:
                words = list(map(str, [*command, "--out", out]))
                enter = groups[number].enter if groups else None
                launchers.append(subprocess.Popen(words, stdout=log, stderr=log, env=environment, preexec_fn=enter))
            time.sleep(1)  # the first one listens
        for number, launcher in enumerate(launchers):
            if launcher.wait(PATIENCE_S):
                raise SystemExit(folder.with_name(f"{folder.name}-{number}.log").read_text()[-2000:])
    finally:
        for launcher in launchers:
            if launcher.poll() is None:
                launcher.kill()
                launcher.wait()
        for group in groups:
            group.close()
    report = json.loads((folder / "report.json").read_text())
    return report["cases"][0], [finding["text"] for finding in report["findings"]]


def show(title, network, keep):
    processors, published = SETTINGS[title]
    limit = f"{processors} processors each" if processors else "no limit"
    print(f"\n{network}, {limit} (`peers/quota.py {title} {network}`)\n")
    print("| workers | FTlib images/s | speed-up | Paceline images/s | speed-up | off the core | throttled | exchange and waiting |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    first, said = None, []
    for workers, theirs in published[network].items():
        case, findings = measure(network, workers, processors, keep / f"{title}-{network}-{workers}")
        rate = case["images_per_s"]["mean"]
        first = first or (rate, theirs)
        lived = workers * case["train_s"]
        off = case["off_core"]
        throttled = f"{100 * off['throttled_s'] / lived:.0f} %" if off["throttled_s"] is not None else "-"
        waits = case["phases_s"]["comm_wait"] + case["phases_s"]["comm_cpu"]
        old = (f"{theirs}", f"{theirs / first[1]:.2f}") if theirs else ("-", "-")
        cells = [workers, *old, f"{rate:.1f}", f"{rate / first[0]:.2f}", f"{100 * off['seconds'] / lived:.0f} %", throttled]
        print("|", " | ".join(map(str, [*cells, f"{100 * waits / lived:.0f} %"])), "|", flush=True)
        said += [f"{workers}: {text}" for text in findings if "kept off" in text]
    print("\n" + "\n".join(said or ["nothing was kept off a core"]), flush=True)


def main():
    words = sys.argv[1:]
    networks = [word for word in words if word in STEPS] or list(STEPS)
    titles = [word for word in words if word in SETTINGS]
    if not titles or set(words) - set(STEPS) - set(SETTINGS):
        sys.exit(__doc__)
    keep = pathlib.Path(os.environ.get("KEEP") or tempfile.mkdtemp(prefix="paceline-quota-"))
    keep.mkdir(exist_ok=True)
    try:
        for title in titles:
            for network in networks:
                show(title, network, keep)
    finally:
        if "KEEP" not in os.environ:
            shutil.rmtree(keep)


if __name__ == "__main__":
    main()
