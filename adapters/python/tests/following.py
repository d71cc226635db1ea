"""For tests: a process that is followed as `paceline run` does it, and what it wrote."""

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(os.path.dirname(HERE), "src", "paceline")
SCRIPTS = os.path.join(HERE, "scripts")
# PyTorch is installed without its bytecode: the first process compiles it, for all.
COMPILED = os.environ.get("PYTHONPYCACHEPREFIX") or tempfile.mkdtemp()
if "PYTHONPYCACHEPREFIX" not in os.environ:
    atexit.register(shutil.rmtree, COMPILED, True)
sys.path.insert(0, os.path.dirname(PACKAGE))

from paceline.files import read_lines


class Rank:
    """The log of a rank."""

    def __init__(self, path):
        self.header, *self.events = read_lines(path)
        self.steps = [event["step"] for event in self.events if "step" in event]
        self.notes = [event["note"]["text"] for event in self.events if "note" in event]
        self.main = next(event["main"] for event in self.events if "main" in event)
        self.done = next((event["done"] for event in self.events if "done" in event), None)


def ranks(folder):
    paths = sorted(name for name in os.listdir(folder) if name.startswith("rank-"))
    return [Rank(os.path.join(folder, name)) for name in paths]


class FollowCase(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.out = os.path.join(self.folder, "out")
        os.mkdir(self.out)

    def order(self, **more):
        return {"out": self.out, "spawn": time.monotonic_ns(), "sample": 1, "model": None, "batch": None, **more}

    def environment(self, **more):
        """That of a command which `paceline run` starts."""
        place = os.path.join(self.folder, "site")
        if not os.path.exists(place):
            shutil.copytree(PACKAGE, os.path.join(place, "paceline"), ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copy(os.path.join(PACKAGE, "sitecustomize.py"), place)
        clean = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "PYTHONPATH")}
        return {**clean, "PYTHONPATH": place, "PACELINE_RUN": json.dumps(self.order(**more)), "PYTHONPYCACHEPREFIX": COMPILED,
                "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}

    def run_script(self, *command, status=0, workers=1, launched=False, fork=False, followed=True, **order):
        """Runs a script of tests/scripts; `launched` or with several workers under torchrun, unless it forks them itself. Returns what it printed."""
        command = [os.path.join(SCRIPTS, command[0]), *command[1:]]
        if fork:
            command += ["--fork", str(workers)]
        elif launched or workers > 1:
            command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers), *command]
        environment = self.environment(**order)
        if not followed:
            environment = {key: value for key, value in environment.items() if key not in ("PYTHONPATH", "PACELINE_RUN")}
        done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=300, cwd=self.folder)
        if status is not None:
            self.assertEqual(done.returncode, status, done.stderr)
        self.assertNotIn("paceline: ", done.stderr)
        return done.stdout

    def check_steps(self, rank, count, *phases):
        """A log of so many steps, seamless, whose phases fit in, each of which has these."""
        self.assertEqual([step["step"] for step in rank.steps], list(range(count)))
        for before, after in zip(rank.steps, rank.steps[1:]):
            self.assertEqual(before["end"], after["begin"])
        for step in rank.steps:
            self.assertLessEqual(sum(step["phases"].values()), step["end"] - step["begin"], step)
            # What comes before the first forward is found out about in the first backward.
            if step["step"] > 1:
                self.assertEqual([phase for phase in phases if phase not in step["phases"]], [], step)

    def with_callback(self, script):
        """A script that is not followed but says by a callback what it does; its only rank, of a finished run."""
        study = os.path.join(self.folder, "study")
        environment = {**self.environment(), "STUDY": study, "PYTHONPATH": os.path.dirname(PACKAGE)}
        del environment["PACELINE_RUN"]
        command = [sys.executable, os.path.join(SCRIPTS, script), "--callback"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("paceline: ", done.stderr)
        case = os.path.join(study, "classifier-1")
        *_, over = read_lines(os.path.join(case, "launcher.jsonl"))
        self.assertEqual(over, {"over": {"outcome": "done", "reason": None}})
        with open(os.path.join(study, "study.json")) as file:
            self.assertEqual(json.load(file)["cases"][0]["folder"], "classifier-1")
        rank, = ranks(case)
        return rank
