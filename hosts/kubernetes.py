"""Scenes of trainings whose pods an Indexed Job starts, ends and replaces: `peers/engines kubernetes` plays them.

The pods' commands are those of deploy/kubernetes, with a small training. Weights must be those of the undisturbed training on one host.
"""

import argparse
import json
import pathlib
import random
import re
import subprocess
import sys
import time
import traceback

import lab
from pods import Cluster, Job

DEPLOY = pathlib.Path(__file__).resolve().parent.parent / "deploy/kubernetes"
STEPS = 80
TRAINING = ["mobilenet_v2", "--global-batch", "8", "--shards", "8", "--threads", "1", "--lr", "0.001"]
TRAINING += ["--eval-every", "0", "--checkpoint-every", "0", "--steps", str(STEPS), "--workers", "1"]
TCP = "tcp://paceline-0.paceline:29400"
STRIKE = 15  # the step after which something happens
SCENES = []


def scene(fault, quick=False, etcd=False):
    def add(function):
        SCENES.append((fault, quick, etcd, function))
        return function

    return add


def draw_pictures(folder):
    """Little data in CIFAR-10's form, always the same."""
    folder.mkdir()
    numbers = random.Random(1)
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        (folder / f"{name}.bin").write_bytes(b"".join(bytes([n % 10]) + numbers.randbytes(3072) for n in range(16)))


class Stage:
    """What a scene has."""

    def __init__(self, cluster, weights):
        self.cluster, self.weights, self.job, self.outcome = cluster, weights, None, ""

    def start(self, name, completions=None, **values):
        draw_pictures(self.cluster.runs / "pictures")
        values = {"TRAINING": " ".join(TRAINING + ["--data", "cifar10:/runs/pictures"]), **values}
        if name == "elastic" and "RENDEZVOUS" not in values:
            values["RENDEZVOUS"] = TCP
        self.job = Job(self.cluster, DEPLOY / f"{name}.yaml", completions=completions, **values)
        return self.job

    def expect_weights(self):
        """Just one pod has written weights, the right ones."""
        found = list(self.cluster.runs.rglob("weights.safetensors"))
        found = [path for path in found if "checkpoints" not in path.parts]
        if len(found) != 1:
            raise lab.Failure(f"there are {len(found)} files of weights instead of one: {found}")
        if lab.hash_of(found[0]) != self.weights:
            raise lab.Failure(f"{found[0]} differs from the undisturbed training's")

    def expect_ended(self, pod, status, *words):
        """It has ended so, and was not killed for being slow."""
        ended = dict((each.name, status) for each, status in self.job.past).get(pod.name)
        if ended != status or pod.is_killed:
            late = ", killed after the grace period" if pod.is_killed else ""
            raise lab.Failure(f"{pod.name} ended with {ended} instead of {status}{late}")
        for each in words:
            if each not in pod.said():
                raise lab.Failure(f"{pod.name} did not say '{each}'")

    def wait_end(self, *pods):
        self.job.wait("pods had ended", lambda: all(pod.process.poll() is not None for pod in pods), self.job.grace_s + 5)
        self.job.tend()

    def wait_part(self, index, but):
        """A new pod of an index does steps."""

        def is_part():
            pod = self.job.pods.get(index)
            return pod and pod is not but and self.job.step(pod.name) >= 0

        self.job.wait(f"a new pod of index {index} took part", is_part)


@scene("none; names are known late", quick=True)
def undisturbed(stage):
    job = stage.start("static")
    job.finish()
    if job.failures or len(job.past) != 3:
        raise lab.Failure("pods were started more than once")
    stage.outcome = "all pods succeed"


@scene("one of three is preempted (SIGTERM), all are replaced", quick=True)
def preempted_static(stage):
    job = stage.start("static")
    job.reach(STRIKE)
    before = dict(job.pods)
    # The name of pod 0 leads to where it was, for longer than its replacement takes to start.
    stage.cluster.lag_s = 4.0
    job.preempt(1)
    stage.wait_end(*before.values())
    for pod in before.values():
        stage.expect_ended(pod, 1)
    stage.expect_ended(before[1], 1, "this host has saved")
    stage.expect_ended(before[0], 1, "To resume from")
    job.finish()
    if any(pod.address == before[0].address for pod, _ in job.past if pod is not before[0]):
        raise lab.Failure("pod 0 has the address of the one before")
    stage.outcome = "all save and end, are started again elsewhere, and resume"


@scene("one of three is preempted (SIGTERM)", quick=True)
def preempted_elastic(stage):
    job = stage.start("elastic", 3)
    job.reach(STRIKE)
    gone = job.pods[2]
    job.preempt(2)
    stage.wait_end(gone)
    stage.expect_ended(gone, 1, "this host has saved")
    stage.wait_part(2, gone)
    job.finish()
    if job.failures:
        raise lab.Failure(f"failures were counted: {job.failures}")
    stage.outcome = f"it saves and leaves in {gone.took_s:.1f} s, others go on, its replacement joins"


@scene("one of three is lost with its node (SIGKILL)")
def lost_elastic(stage):
    job = stage.start("elastic", 3)
    job.reach(STRIKE)
    gone = job.pods[1]
    gone.lose()
    stage.wait_end(gone)
    stage.wait_part(1, gone)
    job.finish()
    stage.outcome = "others go on, its replacement joins"


@scene("pod 0 of three is lost with its node (SIGKILL)")
def lost_first(stage):
    job = stage.start("elastic", 3)
    job.reach(STRIKE)
    before = dict(job.pods)
    before[0].lose()
    stage.wait_end(*before.values())
    for index in (1, 2):
        stage.expect_ended(before[index], 1, "this host has saved")
    job.finish()
    stage.outcome = "others save and end; all are replaced, and resume from the newest checkpoint"


@scene("patched from 1 to 3 and to 2 pods")
def patched(stage):
    job = stage.start("elastic", 1)
    job.reach(5)
    job.patch(3)
    for index in (1, 2):
        stage.wait_part(index, None)
    gone = job.pods[2]
    # Before it has completed a step it has nothing to save.
    begun = job.step(gone.name)
    job.wait("it had done some steps", lambda: job.step(gone.name) >= begun + 3)
    job.patch(2)
    stage.wait_end(gone)
    stage.expect_ended(gone, 1, "this host has saved")
    job.finish()
    if len(job.past) != 3:
        raise lab.Failure(f"{len(job.past)} pods were started")
    stage.outcome = "two join, and the last of them leaves again"


@scene("all are suspended (SIGTERM to each) and resumed")
def suspended(stage):
    job = stage.start("elastic", 3)
    job.reach(STRIKE)
    before = list(job.pods.values())
    job.suspend()
    stage.wait_end(*before)
    for pod in before:
        stage.expect_ended(pod, 1)
    if not list(stage.cluster.runs.rglob("checkpoints/step-*")):
        raise lab.Failure("no pod has saved anything")
    job.resume()
    job.finish()
    stage.outcome = f"all save and end within {max(pod.took_s for pod in before):.1f} s, then resume"


@scene("SIGTERM while pods wait for pod 0", quick=True)
def waiting(stage):
    stage.cluster.lag_s = 1000  # no name is ever known
    job = stage.start("static")
    job.wait("they wait", lambda: len(job.pods) == 3 and all("trying for" in pod.said() for pod in job.pods.values()))
    stage.cluster.publish("paceline-0.paceline", lab.address(24))  # nobody is there
    time.sleep(1.5)
    before = list(job.pods.values())
    job.suspend()
    stage.wait_end(*before)
    for pod in before:
        stage.expect_ended(pod, 143)
    if max(pod.took_s for pod in before) > 2:
        raise lab.Failure("they took their time, with nothing to save")
    stage.weights = None
    stage.outcome = f"all end at once ({max(pod.took_s for pod in before):.1f} s)"


@scene("a secret without a value", quick=True)
def without_secret(stage):
    job = stage.start("static")
    job.secret = ""
    until = time.monotonic() + lab.PATIENCE_S
    while not job.is_over() and time.monotonic() < until:
        job.tend()
        time.sleep(0.02)
    if not job.failed or job.started != 3:
        raise lab.Failure(f"the Job has not failed at once: {job.failed}; {job.started} pods were started")
    if not any("the secret is too short" in pod.said() for pod, status in job.past if status == 2):
        raise lab.Failure("nobody said why")
    stage.weights = None
    stage.outcome = "status 2: the Job fails at once, and no pod is started again"


@scene("a pod is started again after the end")
def too_late(stage):
    job = stage.start("elastic", 2)
    job.finish()
    job.succeeded.discard(1)
    begun = time.monotonic()
    job.finish()
    stage.outcome = f"it sees the weights and succeeds ({time.monotonic() - begun:.1f} s)"


@scene("pod 0 of three is lost with its node (SIGKILL), with etcd", etcd=True)
def lost_first_with_etcd(stage):
    cluster = stage.cluster
    machine = next(cluster.machines)
    at = lab.address(machine)
    command = ["etcd", "--data-dir", cluster.folder / "etcd", "--listen-client-urls", f"http://{at}:2379"]
    command += ["--advertise-client-urls", f"http://{at}:2379"]
    with open(cluster.folder / "etcd.log", "wb") as log:
        etcd = lab.popen_on(machine, list(map(str, command)), stdout=log, stderr=log)
    try:
        cluster.publish("etcd", at)
        job = stage.start("elastic", 3, RENDEZVOUS="etcd://etcd:2379/paceline/run-1")
        job.reach(STRIKE)
        others = [job.pods[1], job.pods[2]]
        gone = job.pods[0]
        gone.lose()
        stage.wait_end(gone)
        stage.wait_part(0, gone)
        job.finish()
        for pod in others:
            stage.expect_ended(pod, 0)
    finally:
        etcd.kill()
        etcd.wait()
    stage.outcome = "others go on, its replacement joins"


def play(number, fault, function, weights, options):
    """One scene: what came of it."""
    begun = time.monotonic()
    print(f"{function.__name__}: {fault}: ", end="", flush=True)
    reason = tail = None
    with Cluster(options.program, options.folder / f"scene-{number}") as cluster:
        stage = Stage(cluster, weights)
        try:
            function(stage)
            if stage.weights:
                stage.expect_weights()
        except lab.Failure as failure:
            reason = str(failure)
        except Exception:
            reason = traceback.format_exc()
        finally:
            if stage.job:
                tail = stage.job.tail()
                stage.job.kill_all()
    took = time.monotonic() - begun
    print(f"{'passed' if reason is None else 'FAILED'} in {took:.1f} s", flush=True)
    if reason is not None:
        print(f"{reason}\n{tail}", flush=True)
    hosts = "1 to 3" if "patched" in function.__name__ else "2" if function is too_late else "3"
    kind = "Job" if stage.job and "backoffLimit" in stage.job.spec else "elastic Job"
    same = reason is None if stage.weights else None
    return {"engine": kind, "hosts": hosts, "fault": fault, "outcome": stage.outcome, "seconds": took, "same": same, "reason": reason}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path, help="where trainings are kept")
    parser.add_argument("--quick", action="store_true", help="the quick scenes alone")
    parser.add_argument("--only", metavar="REGEX", help="scenes with such names")
    options = parser.parse_args()
    about = subprocess.run([options.program, "train", "--help"], capture_output=True, text=True, check=True).stdout
    has_etcd = "etcd://" in about
    alone = options.folder / "undisturbed"
    draw_pictures(options.folder / "pictures")
    data = ["--data", f"cifar10:{options.folder}/pictures"]
    subprocess.run([options.program, "train", *TRAINING, *data, "--pin", "no", "--out", alone], check=True, capture_output=True)
    weights = lab.hash_of(alone / "weights.safetensors")
    results = []
    for number, (fault, quick, etcd, function) in enumerate(SCENES):
        if (options.quick and not quick) or not re.search(options.only or "", function.__name__):
            continue
        if etcd and not has_etcd:
            print(f"{function.__name__}: not played: this program has no rendezvous by etcd", flush=True)
            continue
        results.append(play(number, fault, function, weights, options))
    (options.folder / "results.json").write_text(json.dumps(results))
    sys.exit(any(result["reason"] for result in results))


if __name__ == "__main__":
    main()
