"""What `hosts/soak` does: random kills of workers and launchers in one training over three hosts."""

import argparse
import collections
import os
import random
import signal
import sys
import time

from lab import Failure, Lab, Network, hash_of, wait_until

HOSTS = 3
STEPS_A_KILL = 6
RECIPE = ["train", "mobilenet_v2", "--data", "synthetic:cifar10", "--global-batch", "16", "--shards", "4", "--threads", "1"]
RECIPE += ["--lr", "0.001", "--eval-every", "0", "--checkpoint-every", "0"]
AWAY_S = (0.2, 3.0)  # how long a lost host stays away
LAUNCHERS = 0.4  # the part of kills that strike launchers


class Soak:
    def __init__(self, lab, draw, kills):
        self.lab, self.draw, self.kills = lab, draw, kills
        self.options = (f"1:{HOSTS}", "--elastic", "--restarts", 100000)
        self.running = {host: self.start(host) for host in range(1, HOSTS + 1)}
        self.first = self.running[1]
        self.due = {}  # when lost hosts come back
        self.done = collections.Counter()

    def start(self, host):
        return self.lab.start(host, *self.options)

    def tend(self):
        """Starts hosts that are due, and sees that nobody has ended by itself."""
        for host, launcher in self.running.items():
            if not launcher.is_running():
                raise Failure(f"the launcher of h{host} ended with status {launcher.finish()}\n{launcher.tail()}")
        for host in [host for host, at in self.due.items() if time.monotonic() >= at]:
            del self.due[host]
            self.running[host] = self.start(host)
            self.done["hosts that came back"] += 1

    def strike(self):
        """Kills somebody, if somebody is there who may be killed."""
        host = self.draw.choice(list(self.running))
        launcher = self.running[host]
        if host != 1 and self.draw.random() < LAUNCHERS * HOSTS / (HOSTS - 1):
            launcher.kill()
            del self.running[host]
            self.due[host] = time.monotonic() + self.draw.uniform(*AWAY_S)
            self.done["launchers killed"] += 1
            return True
        members = launcher.members()
        if not members:
            return False
        try:
            os.kill(self.draw.choice(members), signal.SIGKILL)
        except ProcessLookupError:
            return False
        self.done["workers killed"] += 1
        return True

    def run(self):
        wait_until("the first steps were done", lambda: self.first.step() >= 3)
        struck = 0
        for number in range(self.kills):
            # Not faster than steps are done: otherwise nobody would ever do one.
            until = time.monotonic() + 120
            aim = struck + self.draw.randint(1, STEPS_A_KILL)
            while (step := self.first.step()) < aim:
                self.tend()
                if time.monotonic() > until:
                    raise Failure(f"no step was done for 120 s after step {step}")
                time.sleep(0.01)
            struck = step
            while not self.strike():
                self.tend()
                time.sleep(0.01)
            if (number + 1) % 20 == 0:
                print(f"  {number + 1} kills at step {step}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("folder")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    steps = STEPS_A_KILL * options.kills + 20
    lab = Lab(options.program, options.folder, [*RECIPE, "--steps", str(steps)])
    print(f"undisturbed: {steps} steps", flush=True)
    whole = lab.run_alone("undisturbed", "--workers", 2)
    print(f"disturbed: {options.kills} kills, seed {options.seed}", flush=True)
    begun = time.monotonic()
    with Network(HOSTS):
        lab.begin()
        try:
            soak = Soak(lab, random.Random(options.seed), options.kills)
            soak.run()
            for host in sorted(soak.running, reverse=True):
                soak.running[host].expect(0, patience_s=600)
            lab.expect_nobody()
            compare(whole, soak.first.out, steps)
        except Failure as failure:
            sys.exit(f"FAILED: {failure}")
        finally:
            lab.end()
    counts = collections.Counter(kind for kind, _ in soak.first.events())
    told = ", ".join(f"{count} {what}" for what, count in sorted(soak.done.items()))
    print(f"{told}; {counts['hosts']} rosters of hosts")
    print(f"passed: the same bits in {time.monotonic() - begun:.0f} s")


def compare(whole, disturbed, steps):
    for name in ("weights.safetensors", f"checkpoints/step-{steps:08}/state.safetensors"):
        own, other = hash_of(whole / name), hash_of(disturbed / name)
        print(f"{name}: {own} undisturbed, {other} disturbed")
        if own != other:
            raise Failure(f"{name} differs")


if __name__ == "__main__":
    main()
