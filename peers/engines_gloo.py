"""Gloo as a yardstick for the wire `tcp`: the part `gloo` of `peers/engines`. One piece alone: python3 peers/engines_gloo.py PIECE, with
the program in $PACELINE.

loopback   an all-reduce of 94 MB between two processes
wire       the same between three hosts at 1 Gbit/s and 1 ms, made of namespaces
kill       one of three hosts is killed, 20 times
silence    one of three hosts is stopped (SIGSTOP), and one is unplugged, 3 times each, with a lease and a timeout of 2 s

Both run in turns in every piece. Gloo is Debian's libgloo with a program of ours (allreduce_gloo.cc); who was lost is told to its members at
once, where Paceline's first host has to find it out. Three members of Gloo do nothing but all-reduce 9.3 MB, as much as MobileNetV2 has
in gradients; Paceline trains MobileNetV2 on three hosts.
"""

import contextlib
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from hosts import ROOT, WIRE_DELAY_US, WIRE_HOSTS, WIRE_MBIT, read_allreduce
from processes import tied
from scaling import ALLREDUCE_BYTES, run_program

from lab import PATIENCE_S, Failure, Lab, Network, SlowNetwork, address, popen_on, wait_until

PEERS = pathlib.Path(__file__).resolve().parent
PIECES = ["loopback", "wire", "kill", "silence"]
ROUNDS = {"loopback": 5, "wire": 3, "kill": 20, "silence": 3}
TIMES = 10  # all-reduces of a round
STEP_BYTES = 4 * 2_236_682  # MobileNetV2's gradients with 10 classes
HOSTS = 3
LEASE_S = 2  # of Paceline; Gloo's timeout
# Little to compute, as Gloo's members compute nothing, and all of the network's gradients to exchange.
RECIPE = ["train", "mobilenet_v2", "--data", "synthetic:16x16x3", "--global-batch", "4", "--shards", "4", "--threads", "1"]
RECIPE += ["--lr", "0.001", "--eval-every", "0", "--checkpoint-every", "0", "--steps", "5000"]
LIMIT_S = 300


def install(_bench):
    from engines import install_apt

    install_apt("g++", "libgloo-dev", "iproute2")


def build(folder):
    program = pathlib.Path(folder) / "allreduce_gloo"
    if not program.exists():
        source = PEERS / "allreduce_gloo.cc"
        run_program(["g++", "-std=c++17", "-O3", str(source), "-lgloo", "-o", str(program)], LIMIT_S)
    return program


class Gloo:
    """Members of a group: rank r on host r + 1, or all of them on loopback."""

    def __init__(self, program, folder):
        self.program, self.folder, self.count = program, pathlib.Path(folder), 0

    def start(self, world, words, on_hosts=True):
        """The processes, and the folder in which they find each other."""
        self.count += 1
        meeting = self.folder / f"gloo-{self.count}"
        meeting.mkdir()
        members = []
        for rank in range(world):
            at = address(rank + 1) if on_hosts else "127.0.0.1"
            command = [str(self.program), str(meeting), at, str(rank), str(world), *map(str, words)]
            options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            start = (lambda *a, r=rank, **o: popen_on(r + 1, *a, **o)) if on_hosts else tied_popen
            members.append(start(command, **options))
        return members, meeting

    def measure(self, world, on_hosts):
        """Seconds of all-reduces of 94 MB."""
        members, _ = self.start(world, [ALLREDUCE_BYTES, 30_000, TIMES], on_hosts)
        with ending(members):
            output, said = members[0].communicate(timeout=LIMIT_S)
            if members[0].returncode:
                raise Failure(f"Gloo failed: {said}")
        return [float(line) for line in output.split()]

    def lose(self, strike):
        """Members lose one of them by `strike(process, rank)`: seconds until all heard of it, had a new group, had done an all-reduce."""
        members, meeting = self.start(HOSTS, [STEP_BYTES, LEASE_S * 1000, 0])
        with ending(members):
            ready = lambda: all((meeting / f"ready-{rank}").exists() for rank in range(HOSTS))
            wait_until("Gloo's members had done some all-reduces", ready)
            time.sleep(random.uniform(0.01, 0.1))
            lost = random.randrange(1, HOSTS)
            struck = strike(members[lost], lost + 1)
            (meeting / "lost.draft").write_text(str(lost))
            (meeting / "lost.draft").rename(meeting / "lost")
            heard = []
            for rank in range(HOSTS):
                if rank == lost:
                    continue
                output, said = members[rank].communicate(timeout=PATIENCE_S)
                if members[rank].returncode:
                    raise Failure(f"rank {rank} of Gloo did not go on: exit status {members[rank].returncode}: {said}")
                heard.append([float(word) - struck for word in output.split()[:3]])
        return [max(each) for each in zip(*heard)]


def tied_popen(command, **options):
    return subprocess.Popen(command, preexec_fn=tied(), **options)


@contextlib.contextmanager
def ending(processes):
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


class Hosts:
    """Paceline on hosts made of namespaces."""

    def __init__(self, program, folder):
        self.lab = Lab(program, folder, RECIPE)

    def measure_local(self):
        command = [str(self.lab.program), "allreduce", "--hosts", "2", "--local", "--sizes", str(ALLREDUCE_BYTES)]
        return read_allreduce(run_program(command, LIMIT_S), ALLREDUCE_BYTES)

    def measure(self):
        self.lab.begin()
        command = [str(self.lab.program), "allreduce", "--hosts", str(WIRE_HOSTS), "--sizes", str(ALLREDUCE_BYTES)]
        command += ["--rendezvous", f"tcp://{address(1)}:{self.lab.port}"]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        launchers = []
        with ending(launchers):
            for host in range(1, WIRE_HOSTS + 1):
                launchers.append(popen_on(host, command, env=self.lab.environment, **pipes))
            output = launchers[0].communicate(timeout=LIMIT_S)[0]
            if launchers[0].returncode:
                raise Failure(output)
            return read_allreduce(output, ALLREDUCE_BYTES)

    def lose(self, strike):
        """Hosts of a training lose one of them by `strike(process, host)`: seconds until the first heard of it, until it had the new roster,
        until a step was done on all that are left; and of a usual step."""
        self.lab.begin()
        launchers = [self.lab.start(host, f"1:{HOSTS}", "--elastic", "--lease", LEASE_S) for host in range(1, HOSTS + 1)]
        try:
            for launcher in launchers:
                wait_until(f"h{launcher.host} had done some steps", lambda one=launcher: reached(one, 8))
            time.sleep(random.uniform(0.01, 0.1))
            lost = random.randrange(1, HOSTS)
            struck = round(strike(launchers[lost].process, lost + 1) * 1e9)
            first, left = launchers[0], [one for one in launchers if one is not launchers[lost]]

            def moments(kind, wanted):
                return [event["at"] for name, event in first.events() if name == kind and wanted(event) and event["at"] > struck]

            rosters = lambda: moments("hosts", lambda event: len(event["hosts"]) == HOSTS - 1)
            wait_until("the others went on", rosters)
            aims = {one: one.step() + 2 for one in left}
            wait_until("they had done steps", lambda: all(reached(one, aim) for one, aim in aims.items()))
            heard = min(moments("host", lambda event: "lost" in event["change"]))
            ends = [sorted(record["end"] for record in one.steps()) for one in left]
            after = max(min(end for end in each if end > max(struck, min(rosters()))) for each in ends)
            usual = [b - a for a, b in zip(ends[0][2:], ends[0][3:]) if b <= struck]
            return [(at - struck) / 1e9 for at in (heard, min(rosters()), after)] + [statistics.median(usual) / 1e9]
        finally:
            self.lab.end()


def reached(launcher, step):
    if not launcher.is_running():
        raise Failure(f"a launcher has ended: {launcher.tail()}")
    return launcher.step() >= step


# ---- Pieces, each in the namespaces it needs --------------------------------------------------------------------------


def take_turns(contenders, rounds):
    """Runs all of them so many times; who begins changes. What each returned."""
    results, names = {name: [] for name in contenders}, list(contenders)
    for number in range(rounds):
        for name in names:
            results[name].append(contenders[name]())
            print(f"gloo: round {number + 1}: {name}: {results[name][-1]}", file=sys.stderr, flush=True)
        names = names[1:] + names[:1]
    return results


def kill(process, _host):
    at = time.monotonic()
    process.kill()
    return at


def stop(process, _host):
    at = time.monotonic()
    process.send_signal(signal.SIGSTOP)
    return at


def play_inside(piece, program, folder):
    """The results of a piece by contender, and for `silence` by kind of loss too."""
    gloo, paceline, rounds = Gloo(build(folder), folder), Hosts(program, folder), ROUNDS[piece]
    if piece == "loopback":
        return take_turns({"Paceline": paceline.measure_local, "Gloo": lambda: gloo.measure(2, on_hosts=False)}, rounds)
    if piece == "wire":
        with SlowNetwork(WIRE_HOSTS, WIRE_DELAY_US, WIRE_MBIT, folder):
            return take_turns({"Paceline": paceline.measure, "Gloo": lambda: gloo.measure(WIRE_HOSTS, on_hosts=True)}, rounds)

    def losing(contender, strike):
        # A network of its own each time: what was unplugged is gone with it.
        def play():
            with Network(HOSTS) as network:
                return contender.lose(strike(network))

        return play

    def unplug(network):
        def strike(_process, host):
            at = time.monotonic()
            network.cut(host)
            return at

        return strike

    strikes = {"killed": lambda _: kill} if piece == "kill" else {"stopped": lambda _: stop, "unplugged": unplug}
    contenders = {"Paceline": paceline, "Gloo": gloo}
    return take_turns(
        {f"{name}, {what}": losing(one, strike) for what, strike in strikes.items() for name, one in contenders.items()}, rounds
    )


def run_piece(piece, program, folder):
    """Plays a piece in namespaces of its own; its results."""
    folder = pathlib.Path(folder) / piece
    folder.mkdir(parents=True)
    results = folder / "results.json"
    command = [ROOT / "hosts" / "inside", "python3", __file__, "--inside", piece, program, folder, results]
    if subprocess.run(list(map(str, command))).returncode:
        raise Failure(f"the piece {piece} failed")
    return json.loads(results.read_text())


# ---- Tables -----------------------------------------------------------------------------------------------------------


def spread(values, scale=1e3):
    """Median (least to most)."""
    if not values:
        return "-"
    form = lambda value: f"{value * scale:.0f}" if value * scale >= 20 else f"{value * scale:.1f}"
    return f"{form(statistics.median(values))} ({form(min(values))} to {form(max(values))})"


def table(heads, rows):
    print("\n| " + " | ".join(heads) + " |")
    print("|---" + "|---:" * (len(heads) - 1) + "|")
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    print(flush=True)


def show(piece, results):
    if piece in ("loopback", "wire"):
        medians = {name: [statistics.median(each[:1] if name == "Paceline" else each) for each in rounds] for name, rounds in results.items()}
        ratio = statistics.median(a / b for a, b in zip(medians["Paceline"], medians["Gloo"]))
        what = "two processes, loopback" if piece == "loopback" else f"three hosts, {WIRE_MBIT / 1e3:.0f} Gbit/s, {WIRE_DELAY_US / 1e3:.0f} ms"
        rows = [[name, spread(medians[name]), f"{1e3 * min(map(min, results[name])):.0f}"] for name in results]
        table([f"all-reduce of 94 MB, {what}", "ms, median of rounds (least to most)", "best ms"], rows)
        print(f"Paceline's time / Gloo's, median of rounds: {ratio:.2f}\n")
    else:
        heads = ["one of three hosts is", "heard, ms", "new roster or group, ms", "next step or all-reduce done, ms"]
        table(heads, [[name, *(spread(each) for each in list(zip(*rounds))[:3])] for name, rounds in results.items()])
        usual = [each[3] for name, rounds in results.items() for each in rounds if name.startswith("Paceline")]
        print(f"A usual step of Paceline took {spread(usual)} ms.\n")


def play(bench):
    for piece in PIECES:
        results = run_piece(piece, bench.program, bench.scratch / "gloo")
        show(piece, results)
        for name, rounds in results.items():
            bench.check(f"gloo: {piece}: {name}: {len(rounds)} of {ROUNDS[piece]} rounds", len(rounds) == ROUNDS[piece])
            engine, what = ("Gloo" if name.startswith("Gloo") else "tcp"), name.partition(", ")[2]
            if what:
                took = statistics.median(each[1] for each in rounds)
                bench.row(engine, str(HOSTS), f"one is {what}", f"the others go on after {1e3 * took:.0f} ms", took)
            else:
                took = statistics.median(each[0] if engine == "tcp" else statistics.median(each) for each in rounds)
                bench.row(engine, "2, loopback" if piece == "loopback" else "3, 1 Gbit/s", "-", f"94 MB all-reduced in {1e3 * took:.0f} ms", took)


def main():
    if sys.argv[1:2] == ["--inside"]:
        piece, program, folder, results = sys.argv[2:]
        pathlib.Path(results).write_text(json.dumps(play_inside(piece, program, folder)))
        return
    pieces = sys.argv[1:] or PIECES
    if unknown := [piece for piece in pieces if piece not in PIECES]:
        sys.exit(f"there is no piece {unknown[0]}; there are {', '.join(PIECES)}")
    program = pathlib.Path(os.environ.get("PACELINE", ROOT / "target" / "release" / "paceline")).resolve()
    with tempfile.TemporaryDirectory(prefix="engines-gloo-") as folder:
        for piece in pieces:
            show(piece, run_piece(piece, program, folder))


if __name__ == "__main__":
    main()
