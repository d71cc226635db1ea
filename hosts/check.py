"""The scenes of `hosts/check`: trainings on hosts that are killed, unplugged, stopped and started again.

In each, exit statuses and messages must be right, at most one side may go on, and weights must be those of the undisturbed
training on one host, bit for bit.
"""

import argparse
import re
import signal
import statistics
import sys
import time
import traceback

from lab import Failure, Lab, Network, hash_of, wait_until

STEPS = 100
RECIPE = ["train", "mobilenet_v2", "--data", "synthetic:cifar10", "--global-batch", "32", "--shards", "4", "--threads", "1"]
RECIPE += ["--lr", "0.001", "--eval-every", "0", "--checkpoint-every", "0", "--steps", str(STEPS)]
LEASE_S = 2  # the program's own
SOON_S = 30  # for a host that has to stop
STRIKE = 20  # the step after which something happens
SLOWLY = ["--faults", f"slow=0@{STRIKE}:4"]  # leaves hosts the time to come before the last step, on a fast machine, too

SCENES = []


def scene(title, quick=False):
    def add(function):
        SCENES.append((title, quick, function))
        return function

    return add


class Stage:
    """What a scene has: a network, launchers, and the weights of the undisturbed training."""

    def __init__(self, lab, network, weights):
        self.lab, self.network, self.weights = lab, network, weights
        self.notes = []

    def start(self, hosts, *options, count=None):
        """Starts launchers on the first hosts, `count` of them, or as many as `hosts` says."""
        self.lab.begin()
        most = int(str(hosts).split(":")[-1])
        return [self.lab.start(host, hosts, *options) for host in range(1, (count or most) + 1)]

    def begin(self, *arguments, **options):
        """Starts launchers and waits until they have done some steps together."""
        launchers = self.start(*arguments, **options)
        self.reach(launchers[0], STRIKE)
        for launcher in launchers:
            if launcher.step() < 0:
                raise Failure(f"h{launcher.host} takes no part")
        return launchers

    def reach(self, launcher, step):
        def reached():
            if not launcher.is_running():
                raise Failure(f"the launcher of h{launcher.host} ended before step {step}")
            return launcher.step() >= step

        wait_until(f"h{launcher.host} had done step {step}", reached)

    def expect_weights(self, folder):
        path = folder / "weights.safetensors"
        if hash_of(path) != self.weights:
            raise Failure(f"{path} differs from the undisturbed training's")

    def expect_part(self, first, host):
        """A host has shards in the last roster."""
        numbers, rosters = {}, []
        for kind, event in first.events():
            if kind == "host" and "joined" in event["change"]:
                numbers[event["host"]] = event["change"]["joined"]["name"]
            if kind == "hosts":
                rosters.append({numbers.get(place["host"], "h1") for place in event["hosts"] if place["shards"]})
        if f"h{host}" not in rosters[-1]:
            raise Failure(f"h{host} had no shards in the end; those with shards were {rosters}")

    def expect_done(self, launcher):
        launcher.expect(0)
        self.expect_weights(launcher.out)

    def expect_stopped(self, launcher, *words):
        """It has ended with status 1, these words, a checkpoint and no weights; the steps done there."""
        launcher.expect(1, *words, patience_s=SOON_S)
        if (launcher.out / "weights.safetensors").exists():
            raise Failure(f"h{launcher.host} wrote weights, though it had to stop")
        path, steps = launcher.checkpoint()
        last = launcher.step()
        if not last <= steps <= STEPS - 1:
            raise Failure(f"h{launcher.host} saved step {steps} and did step {last}")
        return path, steps

    def expect_alone(self, first, steps):
        """Others stopped after so many steps: the first host went on without them from there, or from the step before."""
        rosters = [event for kind, event in first.events() if kind == "hosts"]
        left = rosters[-1]["step"]
        if not steps - 1 <= left <= steps + 1:
            raise Failure(f"the first host went on from step {left}; a host that was cut off did {steps} steps")

    def expect_resumed(self, checkpoint):
        """A training on one host that goes on from a checkpoint ends with the same weights."""
        out = self.lab.new_folder("resumed")
        self.expect_weights(self.lab.resume(checkpoint, out))

    def note_recovery(self, first, struck, what):
        """What the loss of a host took, by the first host's log."""
        lost = [event["at"] for kind, event in first.events() if kind == "host" and "lost" in event["change"]]
        rosters = [event["at"] for kind, event in first.events() if kind == "hosts"]
        ends = {}
        for record in first.steps():
            ends[record["step"]] = max(ends.get(record["step"], 0), record["end"])
        before = sorted(end for end in ends.values() if end <= struck)
        after = min(end for end in ends.values() if end > struck)
        usual = statistics.median(b - a for a, b in zip(before[3:], before[4:]))
        noticed, went_on = min(at for at in lost if at > struck), min(at for at in rosters if at > struck)
        self.notes.append(
            f"{what}: noticed after {(noticed - struck) / 1e6:.0f} ms, others went on after {(went_on - struck) / 1e6:.0f} ms, "
            f"next step done after {(after - struck) / 1e6:.0f} ms; usual step {usual / 1e6:.0f} ms"
        )


# ---- Scenes -----------------------------------------------------------------------------------------------------------


@scene("two hosts")
def two_hosts(stage):
    launchers = stage.start(2)
    for other in launchers[1:]:
        other.expect(0, "the weights are with the first host")
    stage.expect_done(launchers[0])


@scene("three hosts", quick=True)
def three_hosts(stage):
    launchers = stage.start(3)
    for other in launchers[1:]:
        other.expect(0, "the weights are with the first host")
    stage.expect_done(launchers[0])


@scene("a launcher is killed: others go on", quick=True)
def a_launcher_is_killed(stage):
    first, second, third = stage.begin("1:3", "--elastic")
    struck = second.kill()
    third.expect(0)
    stage.expect_done(first)
    stage.note_recovery(first, struck, "a killed launcher")


@scene("a launcher is killed without --elastic: others save and end", quick=True)
def a_launcher_is_killed_without_elastic(stage):
    first, second, third = stage.begin(3)
    second.kill()
    for launcher in (first, third):
        stage.expect_stopped(launcher, "h2")
    stage.expect_resumed(third.checkpoint()[0])


def unplugged(stage, hosts, who):
    """One host is unplugged in an elastic run: the side of the first goes on."""
    launchers = stage.begin(f"1:{hosts}", "--elastic")
    first, others = launchers[0], launchers[1:]
    struck = time.monotonic_ns()
    stage.network.cut(who)
    try:
        for launcher in others:
            if who in (1, launcher.host):
                stage.expect_alone(first, stage.expect_stopped(launcher, "first host")[1])
            else:
                launcher.expect(0)
        stage.expect_done(first)
    finally:
        stage.network.mend(who)
    stage.note_recovery(first, struck, f"h{who} of {hosts} unplugged")


@scene("the second of two hosts is unplugged")
def the_second_of_two_is_unplugged(stage):
    unplugged(stage, 2, 2)


@scene("the first of two hosts is unplugged", quick=True)
def the_first_of_two_is_unplugged(stage):
    unplugged(stage, 2, 1)


@scene("the first of three hosts is unplugged")
def the_first_of_three_is_unplugged(stage):
    unplugged(stage, 3, 1)


@scene("the second of three hosts is unplugged")
def the_second_of_three_is_unplugged(stage):
    unplugged(stage, 3, 2)


@scene("the third of three hosts is unplugged", quick=True)
def the_third_of_three_is_unplugged(stage):
    unplugged(stage, 3, 3)


@scene("two hosts cannot reach each other, but both the first: one of them goes on with it")
def two_are_parted(stage):
    first, second, third = stage.begin("1:3", "--elastic")
    struck = time.monotonic_ns()
    stage.network.part(2, 3)
    stage.expect_done(first)
    statuses = sorted([second.finish(), third.finish()])
    if statuses != [0, 1]:
        raise Failure(f"h2 and h3 ended with {statuses}")
    stage.expect_stopped(next(each for each in (second, third) if each.finish() == 1))
    stage.note_recovery(first, struck, "two hosts parted")


@scene("a host is unplugged without --elastic: all save and end")
def unplugged_without_elastic(stage):
    first, second, third = stage.begin(3)
    stage.network.cut(3)
    try:
        stage.expect_stopped(third, "first host")
        for launcher in (first, second):
            stage.expect_stopped(launcher, "h3")
    finally:
        stage.network.mend(3)


@scene("fewer hosts than MIN are left: the first waits, then saves and ends")
def too_few_are_left(stage):
    first, second = stage.begin("2:3", "--elastic", "--host-wait", 6, count=2)
    second.kill()
    stage.expect_resumed(stage.expect_stopped(first, "host")[0])


@scene("a cut that heals within the lease changes nothing", quick=True)
def a_short_cut(stage):
    first, second, third = stage.begin("1:3", "--elastic")
    for host in (3, 1):
        stage.network.cut(host)
        time.sleep(LEASE_S / 3)
        stage.network.mend(host)
        stage.reach(first, first.step() + 15)
    for launcher in (second, third):
        launcher.expect(0)
    stage.expect_done(first)
    rosters = [event for kind, event in first.events() if kind == "hosts"]
    if len(rosters) != 1:
        raise Failure(f"there were {len(rosters)} rosters of hosts instead of one")


@scene("a cut that heals after the lease: who was cut off has stopped, and may come back", quick=True)
def a_long_cut(stage):
    first, second, third = stage.begin("1:3", "--elastic", *SLOWLY)
    stage.network.cut(3)
    time.sleep(LEASE_S + 1.5)
    stage.network.mend(3)
    _, steps = stage.expect_stopped(third, "first host")
    stage.expect_alone(first, steps)
    again = stage.lab.start(3, "1:3", "--elastic", *SLOWLY)
    for launcher in (second, again):
        launcher.expect(0)
    stage.expect_done(first)
    stage.expect_part(first, 3)


@scene("a stopped launcher is expelled, and says so when it is continued")
def a_stopped_launcher(stage):
    first, second, third = stage.begin("1:3", "--elastic")
    struck = third.signal(signal.SIGSTOP)
    done = first.step()
    stage.reach(first, done + 10)
    third.signal(signal.SIGCONT)
    stage.expect_stopped(third, "first host")
    second.expect(0)
    stage.expect_done(first)
    stage.note_recovery(first, struck, "a stopped launcher")


@scene("the first launcher is stopped: others save and end, and it goes on alone when it is continued")
def the_first_launcher_is_stopped(stage):
    first, second, third = stage.begin("1:3", "--elastic")
    first.signal(signal.SIGSTOP)
    for launcher in (second, third):
        stage.expect_stopped(launcher, "first host")
    first.signal(signal.SIGCONT)
    stage.expect_done(first)


@scene("a host that comes later takes part")
def a_host_comes_later(stage):
    first, second = stage.begin("1:3", "--elastic", *SLOWLY, count=2)
    third = stage.lab.start(3, "1:3", "--elastic", *SLOWLY)
    for launcher in (second, third):
        launcher.expect(0)
    stage.expect_done(first)
    stage.expect_part(first, 3)


@scene("a killed host comes back twice")
def a_killed_host_comes_back(stage):
    first, second, third = stage.begin("1:3", "--elastic", *SLOWLY)
    for _ in range(2):
        third.kill()
        third = stage.lab.start(3, "1:3", "--elastic", *SLOWLY)
        stage.reach(third, first.step() + 2)
    for launcher in (second, third):
        launcher.expect(0)
    stage.expect_done(first)
    stage.expect_part(first, 3)


@scene("two hosts are killed at once")
def two_are_killed(stage):
    first, second, third = stage.begin("1:3", "--elastic")
    second.kill()
    third.kill()
    stage.expect_done(first)


@scene("the first host is killed: others save and end, and one host goes on from there", quick=True)
def the_first_is_killed(stage):
    first, second, third = stage.begin("1:3", "--elastic")
    first.kill()
    for launcher in (second, third):
        stage.expect_stopped(launcher, "first host")
    stage.expect_resumed(second.checkpoint()[0])


@scene("a host is killed in the test at the end")
def killed_in_the_test(stage):
    first, second, third = stage.begin("1:3", "--elastic")
    stage.reach(first, STEPS - 1)
    time.sleep(0.3)
    second.kill()
    third.expect(0)
    stage.expect_done(first)


@scene("everything is encrypted, and a host is killed")
def encrypted(stage):
    first, second, third = stage.begin("1:3", "--elastic", "--encrypt")
    second.kill()
    third.expect(0)
    stage.expect_done(first)


# ---- Running them -----------------------------------------------------------------------------------------------------


def play(title, function, lab, weights):
    """One scene; whether it passed."""
    begun = time.monotonic()
    print(f"{title}: ", end="", flush=True)
    reason, tails = None, []
    with Network(3) as network:
        stage = Stage(lab, network, weights)
        try:
            function(stage)
            lab.expect_nobody()
        except Failure as failure:
            reason = str(failure)
        except Exception:
            reason = traceback.format_exc()
        finally:
            tails = [launcher.tail() for launcher in lab.launchers]
            lab.end()
    print(f"{'passed' if reason is None else 'FAILED'} in {time.monotonic() - begun:.1f} s", flush=True)
    for note in stage.notes:
        print(f"    {note}", flush=True)
    if reason is not None:
        print("\n".join([reason, *tails]), flush=True)
    return reason is None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("folder", help="where trainings are kept")
    parser.add_argument("--all", action="store_true", help="all scenes, not only the quick ones")
    parser.add_argument("--only", metavar="REGEX", help="scenes with such titles")
    options = parser.parse_args()
    scenes = [each for each in SCENES if options.only or options.all or each[1]]
    scenes = [each for each in scenes if re.search(options.only or "", each[0])]
    if not scenes:
        sys.exit(f"no scene is called like '{options.only}'; there are:\n" + "\n".join(title for title, _, _ in SCENES))
    lab = Lab(options.program, options.folder, RECIPE)
    weights = hash_of(lab.run_alone("undisturbed", "--workers", "2") / "weights.safetensors")
    failed = [title for title, _, function in scenes if not play(title, function, lab, weights)]
    if failed:
        sys.exit(f"{len(failed)} of {len(scenes)} failed: {'; '.join(failed)}")
    print(f"all {len(scenes)} passed")


if __name__ == "__main__":
    main()
