#!/usr/bin/env python3
"""Paceline on several hosts against others, measured in turns; `peers/hosts` prepares all.

allreduce  94 MB between two processes through loopback: `paceline allreduce --hosts 2 --local`, PyTorch's gloo (torch_ddp.py, one world
           that is kept), Open MPI over TCP (allreduce_mpi.c)
training   `paceline bench --hosts 2 --local --workers 1`, `paceline bench --workers 2` and DDP over gloo, one thread a worker
wire       three hosts made of namespaces, 1 Gbit/s and 1 ms: `paceline allreduce --hosts 3` against one plain TCP stream

In a round each contender runs once; the one that begins changes from round to round, and ratios are taken round by round. Tables are
Markdown, on standard output. A contender that fails is named on standard error and left out; the exit status is then 1.
"""

import argparse
import collections
import contextlib
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from scaling import ALLREDUCE_BYTES, Ddp, Failure, Paceline, Steps, positive, run_program

PEERS = pathlib.Path(__file__).resolve().parent
ROOT = PEERS.parent
sys.path.insert(0, str(ROOT / "hosts"))

PARTS = ["allreduce", "training", "wire"]
TIMES = 10  # all-reduces of a round
STEPS = {"mobilenet_v2": 40, "other": 10}
DDP_STEPS = {"mobilenet_v2": 20, "other": 6}
WIRE_HOSTS, WIRE_MBIT, WIRE_DELAY_US = 3, 1000, 1000
STREAM_BYTES = 200 << 20


def say(text):
    print(f"hosts: {text}", file=sys.stderr, flush=True)


def take_turns(contenders, rounds):
    """Runs all of them so many times: what each returned, and whether none failed."""
    results, names, good = collections.defaultdict(list), list(contenders), True
    for number in range(rounds):
        for name in list(names):
            try:
                results[name].append(contenders[name]())
                say(f"round {number + 1}: {name}: {results[name][-1]}")
            except (Failure, OSError, subprocess.TimeoutExpired) as failure:
                say(f"round {number + 1}: {name} failed and is left out: {failure}")
                names.remove(name)
                results.pop(name, None)
                good = False
        names = names[1:] + names[:1]
    return results, good


def ratio(results, one, other):
    """Median of the ratios of rounds."""
    pairs = list(zip(results.get(one, []), results.get(other, [])))
    return f"{statistics.median(a / b for a, b in pairs):.2f}" if pairs else "-"


def table(heads, rows):
    print("| " + " | ".join(heads) + " |")
    print("|---" + "|---:" * (len(heads) - 1) + "|")
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    print(flush=True)


# ---- All-reduce through loopback --------------------------------------------------------------------------------------


def read_allreduce(output, size):
    """Median and least seconds from Paceline's table."""
    heads = None
    for line in output.splitlines():
        if "size B" in line:
            heads = [head.strip() for head in line.split("  ") if head.strip()]
        cells = line.split()
        if heads and cells and cells[0] == str(size):
            row = dict(zip(heads, cells))
            if row["wrong"] != "0":
                raise Failure(f"{row['wrong']} sums are wrong")
            return [float(row[head]) / 1e6 for head in ("time us", "least us")]
    raise Failure(f"there is no line of {size} bytes in\n{output}")


class AllReduces:
    """Contenders, each of which returns the seconds of its all-reduces; Paceline tells only the median and the least."""

    def __init__(self, options, scratch):
        self.options = options
        self.world = Ddp("resnet50", 2, "nhwc", options)
        self.mpi = pathlib.Path(scratch) / "allreduce_mpi"

    def paceline(self):
        command = [str(self.options.paceline), "allreduce", "--hosts", "2", "--local", "--sizes", str(ALLREDUCE_BYTES)]
        return read_allreduce(run_program(command, self.options.limit_s), ALLREDUCE_BYTES)

    def gloo(self):
        return self.world.ask(f"allreduce {TIMES}")["seconds"]

    def open_mpi(self):
        if not self.mpi.exists():
            run_program(["mpicc", "-O2", "-o", str(self.mpi), str(PEERS / "allreduce_mpi.c")], self.options.limit_s)
        command = ["mpirun", "-np", "2", "--oversubscribe", "--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]
        command += ["--mca", "btl_tcp_if_include", "lo"] + (["--allow-run-as-root"] if os.getuid() == 0 else [])
        output = run_program([*command, str(self.mpi), str(ALLREDUCE_BYTES), str(TIMES)], self.options.limit_s)
        return [float(line) for line in output.split()]


def allreduce(options, scratch):
    contenders = AllReduces(options, scratch)
    runs = {"Paceline": contenders.paceline, "gloo (PyTorch)": contenders.gloo}
    if shutil.which("mpirun") and shutil.which("mpicc"):
        runs["Open MPI, TCP"] = contenders.open_mpi
    else:
        say("there is no Open MPI: left out")
    try:
        results, good = take_turns(runs, options.rounds)
    finally:
        contenders.world.close()
    medians = {name: [statistics.median(seconds) for seconds in rounds] for name, rounds in results.items()}
    # Paceline's two numbers are its median and its least.
    medians["Paceline"] = [seconds[0] for seconds in results.get("Paceline", [])]
    print(f"All-reduce of {ALLREDUCE_BYTES / 1e6:.0f} MB between two processes through loopback, {options.rounds} rounds:\n")
    rows = []
    for name, rounds in results.items():
        median, best = statistics.median(medians[name]), min(min(seconds) for seconds in rounds)
        rows.append([name, f"{1e3 * median:.0f}", f"{1e3 * best:.0f}", ratio(medians, "Paceline", name)])
    table(["", "median ms", "best ms", "Paceline's time / its"], rows)
    return good


# ---- Training ---------------------------------------------------------------------------------------------------------


class Hosts(Paceline):
    """Two hosts of one worker each on this machine."""

    def __init__(self, network, options):
        super().__init__(network, 1, "allreduce", options)
        self.command += ["--hosts", "2", "--local"]


def training(options, _):
    good = True
    print(f"Images/s with two workers of one thread, batch {options.batch} each, medians of {options.rounds} rounds:\n")
    rows = []
    for network in ("mobilenet_v2", "resnet50"):
        ddp = Ddp(network, 2, "nhwc", options)
        contenders = {"hosts": Hosts(network, options), "workers": Paceline(network, 2, "allreduce", options), "ddp": ddp}
        try:
            results, fine = take_turns({name: lambda c=c: c.run()[0]["median"] for name, c in contenders.items()}, options.rounds)
        finally:
            ddp.close()
        good &= fine
        rates = [f"{statistics.median(results[name]):.1f}" if name in results else "-" for name in contenders]
        rows.append([network, *rates, ratio(results, "hosts", "workers"), ratio(results, "hosts", "ddp")])
    table(["", "2 hosts x 1", "1 host x 2", "DDP, gloo", "2 x 1 / 1 x 2", "2 x 1 / DDP"], rows)
    return good


# ---- Three hosts at 1 Gbit/s ------------------------------------------------------------------------------------------


def wire(options, _):
    """Starts this again where namespaces can be made."""
    inside = str(ROOT / "hosts" / "inside")
    if subprocess.run([inside, "--probe"]).returncode != 0:
        return False
    command = [inside, "python3", __file__, "--inside", "--paceline", str(options.paceline), "--rounds", str(options.rounds)]
    return subprocess.run([*command, "--limit-s", str(options.limit_s)]).returncode == 0


def wire_inside(options, scratch):
    from lab import SECRET, SlowNetwork, address, popen_on

    def stream():
        """Bytes per second of one stream from h2 to h1."""
        code = "import hosts, sys; hosts.STREAMS[sys.argv[1]](sys.argv[2])"
        start = lambda host, part: popen_on(
            host, [sys.executable, "-c", code, part, address(1)], stdout=subprocess.PIPE, text=True, cwd=PEERS
        )
        with start(1, "receive") as receiver, start(2, "send"):
            return float(receiver.communicate(timeout=options.limit_s)[0])

    port = iter(range(29400, 65536))

    def paceline():
        command = [str(options.paceline), "allreduce", "--hosts", str(WIRE_HOSTS), "--sizes", str(ALLREDUCE_BYTES)]
        command += ["--rendezvous", f"tcp://{address(1)}:{next(port)}"]
        environment = {**os.environ, "PACELINE_SECRET": SECRET}
        with contextlib.ExitStack() as stack:
            launchers = []
            for host in range(1, WIRE_HOSTS + 1):
                pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
                launchers.append(popen_on(host, command, stdin=subprocess.DEVNULL, env=environment, **pipes))
                stack.callback(launchers[-1].kill)
            output = launchers[0].communicate(timeout=options.limit_s)[0]
            if launchers[0].returncode != 0:
                raise Failure(output)
            # As much goes out of each host, and into it.
            return 2 * (WIRE_HOSTS - 1) / WIRE_HOSTS * ALLREDUCE_BYTES / read_allreduce(output, ALLREDUCE_BYTES)[0]

    with SlowNetwork(WIRE_HOSTS, WIRE_DELAY_US, WIRE_MBIT, scratch):
        results, good = take_turns({"one TCP stream": stream, "Paceline": paceline}, options.rounds)
    print(f"All-reduce of {ALLREDUCE_BYTES / 1e6:.0f} MB between {WIRE_HOSTS} hosts, {WIRE_MBIT / 1e3:.0f} Gbit/s and "
          f"{WIRE_DELAY_US / 1e3:.0f} ms in each direction, {options.rounds} rounds; what goes through each host's link in each direction (busbw):\n")
    rows = []
    for name, rates in results.items():
        median, best = statistics.median(rates), max(rates)
        rows.append([name, f"{8e-6 * median:.0f}", f"{8e-6 * best:.0f}", ratio(results, name, "one TCP stream")])
    table(["", "median Mbit/s", "best Mbit/s", "of the stream"], rows)
    return good


def send_stream(to):
    until = time.monotonic() + 10
    while True:
        try:
            connection = socket.create_connection((to, 29399))
            break
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
    piece = bytes(1 << 20)
    with connection:
        for _ in range(STREAM_BYTES // len(piece)):
            connection.sendall(piece)


def receive_stream(at):
    """Prints bytes per second of what comes, without the first tenth, in which the stream finds its rate."""
    room, count, begun = bytearray(1 << 20), 0, None
    with socket.create_server((at, 29399)) as server, server.accept()[0] as connection:
        while length := connection.recv_into(room):
            count += length
            if begun is None and count >= STREAM_BYTES // 10:
                begun, skipped = time.perf_counter(), count
    print((count - skipped) / (time.perf_counter() - begun))


STREAMS = {"send": send_stream, "receive": receive_stream}


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    steps, ddp_steps = Steps(STEPS), Steps(DDP_STEPS)
    add("parts", nargs="*", metavar="PART", help="allreduce, training, wire (all)")
    add("--rounds", type=positive, default=5, help="(5)")
    add("--steps", type=steps.parse, default=steps, metavar="K", help="Paceline's timed steps a round (10, mobilenet_v2 40)")
    add("--ddp-steps", type=ddp_steps.parse, default=ddp_steps, metavar="K", help="the same of DDP (6, mobilenet_v2 20)")
    add("--batch", type=positive, default=64, help="images a step of each worker (64)")
    add("--input", default="32x32", metavar="HxW", help="image size (32x32)")
    add("--limit-s", type=positive, default=300, metavar="SECONDS", help="a single run that takes longer has failed (300)")
    add("--paceline", type=pathlib.Path, default=target / "release" / "paceline", help="the program to run")
    add("--python", default=sys.executable, help="the interpreter that has PyTorch (the one that runs this)")
    add("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    wrong = [part for part in options.parts if part not in PARTS]
    if wrong:
        parser.error(f"there is no part {wrong[0]}; there are {', '.join(PARTS)}")
    options.paceline = options.paceline.absolute()
    if not os.access(options.paceline, os.X_OK):
        parser.error(f"{options.paceline} is not there; build it with `cargo build --release`, or name it with --paceline")
    return options


def main():
    options = parse_args()
    runs = {"allreduce": allreduce, "training": training, "wire": wire}
    with tempfile.TemporaryDirectory(prefix="paceline-hosts-") as scratch:
        if options.inside:
            good = wire_inside(options, scratch)
        else:
            good = all([runs[part](options, scratch) for part in options.parts or PARTS])
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
