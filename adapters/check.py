"""What adapters/check does once PyTorch and Paceline are there: check.py PACELINE"""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor

ADAPTERS = os.path.dirname(os.path.abspath(__file__))
EXAMPLE = os.path.join(os.path.dirname(ADAPTERS), "examples", "pytorch_ddp.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", EXAMPLE]
SLEEP_MS = 150  # much more than two workers on a busy machine are apart by themselves
results = []


def check(what, holds, seen):
    results.append(bool(holds))
    print(f"{'ok  ' if holds else 'FAIL'} {what} ({seen})", flush=True)


def run(*command, status=0):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    if done.returncode != status:
        sys.exit(f"check: {' '.join(command)} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def report(paceline, folder, status=0):
    done = subprocess.run([paceline, "report", folder, "--json"], capture_output=True, text=True)
    if done.returncode != status:
        sys.exit(f"check: paceline report {folder} ended with {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def check_case(name, case):
    check(f"{name}: done", case["status"] == "done", case["reason"])
    if case["status"] != "done":
        return
    gaps = [abs(sum(rank["phases_s"].values()) - case["total_s"]) for rank in case["ranks"]]
    check(f"{name}: each rank's phases sum to the wall time", max(gaps) <= 1e-6, f"off by {max(gaps):.1e} s")
    shares = [rank["phases_s"]["other"] / case["total_s"] for rank in case["ranks"]]
    check(f"{name}: nothing is negative", all(t >= 0 for rank in case["ranks"] for t in rank["phases_s"].values()),
          f"other is {', '.join(f'{100 * share:.2f} %' for share in shares)} of the wall time")
    rate = case["images_per_s"]
    check(f"{name}: it has a rate", rate and rate["mean"] > 0, f"{rate['mean']:.0f} images/s" if rate else None)
    check(f"{name}: memory is known", case["peak_memory_bytes"], case["peak_memory_bytes"])
    worked = {phase: case["phases_s"][phase] for phase in ("init", "load", "forward", "backward", "update", "eval", "checkpoint")}
    check(f"{name}: every phase of the script has time", all(worked.values()), {k: round(v, 3) for k, v in worked.items()})
    if case["workers"] > 1:
        split, wait = case["comm_wait_split_s"], case["phases_s"]["comm_wait"]
        whole = split["late_rank"] + split["transfer"]
        check(f"{name}: comm_wait is split", split["late_rank"] > 0 and split["transfer"] > 0 and abs(whole - wait) < 1e-6, split)
        check(f"{name}: exchanges were under way", case["comm_busy_s"] > 0, f"{case['comm_busy_s']:.3f} s, overlap {case['overlap']:.2f}")


def classes(tests):
    """The names of the classes that have these tests, each once, in their order."""
    if isinstance(tests, unittest.TestSuite):
        return list(dict.fromkeys(name for each in tests for name in classes(each)))
    return [tests.id().rpartition(".")[0]]


def check_tests():
    """The package's tests, two classes at a time: much of what they do is wait for PyTorch to start."""
    folder = os.path.join(ADAPTERS, "python", "tests")
    command = [sys.executable, "-m", "unittest", "-q"]

    def run_class(name):
        return subprocess.run([*command, name], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    count = 0
    with ThreadPoolExecutor(2) as pool:
        names = classes(unittest.defaultTestLoader.discover(folder))
        for name, done in zip(names, pool.map(run_class, names)):
            if done.returncode != 0:
                print(done.stdout)
            ran = re.search(r"^Ran (\d+) test", done.stdout, re.MULTILINE)
            count += int(ran[1]) if ran else 0
            check(f"tests of {name}", done.returncode == 0 and ran, ran and ran[0])
    check("tests were found", count > 0, count)


def check_example(paceline, folder):
    """The unmodified example with one worker and with two, in one study."""
    run(paceline, "run", "--json", "--out", folder, "--workers-sweep", "1,2", "--", *TORCHRUN)
    study = report(paceline, folder)
    for case in study["cases"]:
        check_case(f"{case['workers']} worker(s)", case)
    speedup = study["cases"][1]["speedup_speed"]
    check("the two cases are one group with a speed-up", speedup and len(study["explained"]) == 1, speedup)
    waterfall = study["explained"][0]["waterfalls"][0]
    gap = waterfall["to_s"] - waterfall["from_s"] - sum(share["seconds"] for share in waterfall["shares"])
    check("the waterfall adds up", abs(gap) < 1e-9, f"off by {gap:.1e} s")


def check_sleeper(paceline, folder):
    """With loader processes; each step rank 1 sleeps."""
    options = ["--sleep-rank", "1", "--sleep-ms", str(SLEEP_MS), "--loader-workers", "1"]
    run(paceline, "run", "--json", "--out", folder, "--", *TORCHRUN, *options)
    case = report(paceline, folder)["cases"][0]
    check_case("a sleeping rank", case)
    late = case["straggler"]
    check("a sleeping rank: it is named", late and late["rank"] == 1 and late["share"] > 0.5, late)
    slept = case["steps"] * SLEEP_MS / 1e3
    waited = case["comm_wait_split_s"]["late_rank"]
    check("a sleeping rank: others waited for it", waited > 0.5 * slept, f"{waited:.2f} s, slept {slept:.2f} s")
    launch = case["ranks"][0]["phases_s"]["launch"]
    check("a sleeping rank: torchrun's start is seen", launch > 0.1, f"{launch:.2f} s")


def check_alone(paceline, folder):
    """A script that Python runs, without a launcher."""
    script = os.path.join(ADAPTERS, "python", "tests", "scripts", "processes.py")
    run(paceline, "run", "--json", "--out", folder, "--", sys.executable, script, "workers")
    case = report(paceline, folder)["cases"][0]
    check("a script of one process: done", case["status"] == "done" and case["steps"] == 4, case["reason"])
    check("a script of one process: nothing is negative", all(t >= 0 for t in case["phases_s"].values() if t is not None), case["phases_s"])


def check_failure(paceline, folder):
    """A rank that dies: the command's status is kept, and the report says that the run failed."""
    script = os.path.join(ADAPTERS, "python", "tests", "scripts", "processes.py")
    run(paceline, "run", "--json", "--out", folder, "--", sys.executable, script, "exit", status=7)
    case = report(paceline, folder, status=1)["cases"][0]
    check("a script that fails: so does its case", case["status"] == "failed", case["reason"])
    check("a script that fails: its steps are there", case["steps"] > 0, f"{case['steps']} steps")


def main():
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    check_tests()
    with tempfile.TemporaryDirectory() as scratch:
        check_example(sys.argv[1], os.path.join(scratch, "example"))
        check_sleeper(sys.argv[1], os.path.join(scratch, "sleeper"))
        check_alone(sys.argv[1], os.path.join(scratch, "alone"))
        check_failure(sys.argv[1], os.path.join(scratch, "failure"))
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
