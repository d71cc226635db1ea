#!/usr/bin/env python3
"""Plants a cause of lost time in real PyTorch runs under DDP, and checks that the report names it, and no other:

    python adapters/planted.py PACELINE [CAUSE ...]

PACELINE is the program. Causes are those of CAUSES below; all without one, those of a GPU where there is one. Two workers on two cores, so run it
where nothing else runs: what else the machine does is a cause too, and is named. Under a foreign load, the workers and two busy loops share two cores.
"""

import json
import os
import subprocess
import sys
import tempfile

ADAPTERS = os.path.dirname(os.path.abspath(__file__))
EXAMPLE = os.path.join(os.path.dirname(ADAPTERS), "examples", "pytorch_ddp.py")
LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
STEPS = ["--epochs", "1", "--steps-per-epoch"]
ON_A_GPU = ["--device", "cuda", "--loader-workers", "4"]

# What is planted, and the finding that must name it.
CAUSES = {
    "nothing": ([], None),
    "slow loader": (["--load-ms", "40"], "input"),
    "late rank": (["--sleep-rank", "1", "--sleep-ms", "40"], "stragglers"),
    "large exchange": (["--wide", "6000", "--one-bucket", "--batch", "8"], "communication"),
    "checkpoints": (["--save-every", "10", "--save-mb", "1200"], "evaluation"),
    "foreign load": ([], "off_core"),
    "nothing on a GPU": ([*ON_A_GPU, "--batch", "256", "--wide", "32000"], None),
    "GPU waits for its host": ([*ON_A_GPU, "--batch", "2"], "starved"),
}
LOSSES = {"input", "stragglers", "communication", "evaluation", "off_core", "other", "update", "slowdown", "starved", "idle"}


def report_of(paceline, folder, options, loaded):
    all_cores = os.sched_getaffinity(0)
    # Children inherit it.
    os.sched_setaffinity(0, sorted(all_cores)[:2] if loaded else all_cores)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 if loaded else 0)]
    workers, steps = ("1", "300") if "cuda" in options else ("2", "60")
    try:
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        command = [paceline, "run", "--json", "--out", folder, "--", *LAUNCH, workers, EXAMPLE, *STEPS, steps, *options]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    finally:
        for process in busy:
            process.kill()
            process.wait()
        os.sched_setaffinity(0, all_cores)
    if done.returncode:
        sys.exit(f"planted.py: {' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    with open(os.path.join(folder, "report.json")) as file:
        return json.load(file)


def main():
    paceline, *wanted = sys.argv[1:] or sys.exit(__doc__)
    wrong = 0
    import torch

    here = [cause for cause, (options, _) in CAUSES.items() if "cuda" not in options or torch.cuda.is_available()]
    for cause in wanted or here:
        options, kind = CAUSES[cause]
        with tempfile.TemporaryDirectory() as scratch:
            report = report_of(paceline, os.path.join(scratch, "study"), options, cause == "foreign load")
        case = report["cases"][0]
        # Start and end of so short a run are long in any case.
        found = {finding["kind"]: finding for finding in report["findings"] if finding["kind"] in LOSSES}
        first = max(found.values(), key=lambda finding: finding["lost_s"] or 0, default=None)
        named = first["kind"] if first else None
        good = named == kind
        wrong += not good
        others = sorted(set(found) - {kind})
        shares = {phase: round(time / case["total_s"] / case["workers"], 3) for phase, time in case["phases_s"].items() if time}
        print(f"{'ok  ' if good else 'FAIL'} {cause}: {first['text'] if first else 'nothing is named'}", flush=True)
        print(f"     also named: {', '.join(others) or 'nothing'}; parts of the time: {shares}", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
