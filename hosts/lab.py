"""Hosts on one machine, made of network namespaces, and trainings on them. To be run through `hosts/inside`.

Each host is a namespace with a name of its own and the address 10.77.0.N; a bridge in one more namespace is the switch between
them, where a host can be unplugged.
"""

import collections
import ctypes
import fcntl
import glob
import hashlib
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import threading
import time

CLONE_NEWUTS = 0x04000000  # linux/sched.h
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000  # linux/if_tun.h
libc = ctypes.CDLL(None, use_errno=True)

SECRET = "a secret for tests, of no value"
PORT = 29400
PATIENCE_S = 120  # for whatever should happen at all


class Failure(Exception):
    """What did not go as it should."""


def address(host):
    return f"10.77.0.{host}"


def ip(*words, space=None):
    subprocess.run(["ip", *(["-n", space] if space else []), *map(str, words)], check=True)


class Network:
    """Hosts h1, h2, ... on a bridge; `rate` in tc's words, as 1gbit, limits each link in both directions."""

    def __init__(self, hosts, rate=None):
        self.hosts = range(1, hosts + 1)
        self.rate = rate

    def __enter__(self):
        ip("netns", "add", "switch")
        # Without spanning trees a port works as soon as it is up.
        ip("link", "add", "bridge", "type", "bridge", "stp_state", "0", "forward_delay", "0", space="switch")
        ip("link", "set", "bridge", "up", space="switch")
        for host in self.hosts:
            space, port = f"h{host}", f"p{host}"
            add_host(host)
            ip("link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", "switch", space=space)
            plug_in(host)
            ip("link", "set", port, "master", "bridge", space="switch")
            ip("link", "set", port, "up", space="switch")
            for where, device in ((space, "eth0"), ("switch", port)) if self.rate else ():
                bucket = ["tbf", "rate", self.rate, "burst", "128kb", "latency", "20ms"]
                subprocess.run(["tc", "-n", where, "qdisc", "add", "dev", device, "root", *bucket], check=True)
        return self

    def __exit__(self, *_):
        for space in ["switch"] + [f"h{host}" for host in self.hosts]:
            ip("netns", "del", space)

    def cut(self, host):
        ip("link", "set", f"p{host}", "down", space="switch")

    def mend(self, host):
        ip("link", "set", f"p{host}", "up", space="switch")

    def part(self, one, other):
        """Cuts the way between two hosts alone: what they send each other goes to a hardware address that nobody has."""
        for host, peer in ((one, other), (other, one)):
            nobody = ["lladdr", "02:00:00:00:ff:ff", "nud", "permanent", "dev", "eth0"]
            ip("neigh", "replace", address(peer), *nobody, space=f"h{host}")


class SlowNetwork:
    """Hosts h1, h2, ... on a switch of our own, with a delay in each direction and a rate into each host."""

    def __init__(self, hosts, delay_us, rate_mbit, folder):
        self.hosts, self.delay_us, self.rate_mbit = range(1, hosts + 1), delay_us, rate_mbit
        self.program = pathlib.Path(folder) / "switch"

    def __enter__(self):
        source = pathlib.Path(__file__).with_name("switch.rs")
        subprocess.run(["rustc", "-O", "--edition", "2024", source, "-o", self.program], check=True)
        taps = []
        for host in self.hosts:
            add_host(host)
            taps.append(create_tap(host))
            ip("link", "set", "eth0", "address", f"02:00:00:00:00:{host:02x}", "mtu", "9000", space=f"h{host}")
            plug_in(host)
        numbers = map(str, [self.delay_us, self.rate_mbit, *taps])
        self.switch = subprocess.Popen(
            [self.program, *numbers], pass_fds=taps, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for tap in taps:
            os.close(tap)
        if self.switch.stdout.readline() != "ready\n":
            raise Failure("the switch does not start")
        return self

    def __exit__(self, *_):
        self.switch.communicate()  # the end of its input is its end
        for host in self.hosts:
            ip("netns", "del", f"h{host}")


def add_host(host):
    ip("netns", "add", f"h{host}")
    ip("link", "set", "lo", "up", space=f"h{host}")


def plug_in(host):
    ip("addr", "add", f"{address(host)}/24", "dev", "eth0", space=f"h{host}")
    ip("link", "set", "eth0", "up", space=f"h{host}")


def create_tap(host):
    """A descriptor for a new eth0 of a host, which works from anywhere."""
    made = []

    def create():
        # This thread ends in that namespace.
        with open(f"/run/netns/h{host}") as space:
            if libc.setns(space.fileno(), 0) != 0:
                return
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
        fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", b"eth0", IFF_TAP | IFF_NO_PI))
        made.append(tap)

    thread = threading.Thread(target=create)
    thread.start()
    thread.join()
    if not made:
        raise Failure("a TAP cannot be made here")
    return made[0]


def on_host(host):
    """A `preexec_fn` that moves a process to a host."""
    space = os.open(f"/run/netns/h{host}", os.O_RDONLY | os.O_CLOEXEC)

    def enter():
        if libc.setns(space, 0) != 0 or libc.unshare(CLONE_NEWUTS) != 0:
            raise OSError(ctypes.get_errno(), "cannot enter the namespace of a host")
        socket.sethostname(f"h{host}")

    return space, enter


def popen_on(host, command, **options):
    space, enter = on_host(host)
    try:
        return subprocess.Popen(command, preexec_fn=enter, **options)
    finally:
        os.close(space)


class Launcher:
    """A `paceline train` on one host."""

    def __init__(self, host, command, out, environment):
        self.host, self.out = host, pathlib.Path(out)
        self.words = self.out.with_name(self.out.name + ".log")
        self.file = open(self.words, "wb")
        self.last, self.read = -1, collections.Counter()
        self.process = popen_on(
            host, command, stdin=subprocess.DEVNULL, stdout=self.file, stderr=subprocess.STDOUT, env=environment
        )

    def said(self):
        return self.words.read_text(errors="replace")

    def is_running(self):
        return self.process.poll() is None

    def signal(self, number):
        """Sends a signal to the launcher alone; the moment, on the clock of logs."""
        at = time.monotonic_ns()
        self.process.send_signal(number)
        return at

    def kill(self):
        at = self.signal(signal.SIGKILL)
        self.process.wait()
        return at

    def members(self):
        """Its worker processes."""
        path = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        try:
            return [int(word) for word in pathlib.Path(path).read_text().split()]
        except OSError:
            return []

    def finish(self, patience_s=PATIENCE_S):
        """Its exit status."""
        try:
            return self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            raise Failure(f"the launcher of h{self.host} has not ended within {patience_s} s\n{self.tail()}") from None

    def expect(self, status, *words, patience_s=PATIENCE_S):
        """Waits for its end, which must be this one, and for these words in what it said."""
        ended = self.finish(patience_s)
        if ended != status:
            raise Failure(f"the launcher of h{self.host} ended with status {ended} instead of {status}\n{self.tail()}")
        said = " ".join(self.said().split())
        for each in words:
            if each not in said:
                raise Failure(f"the launcher of h{self.host} did not say '{each}'\n{self.tail()}")

    def tail(self):
        return "\n".join(f"    {line}" for line in self.said().strip().splitlines()[-12:])

    def logs(self, name):
        """Files of its run by a pattern: those of the first host are in a folder of their case."""
        return [path for path in glob.glob(f"{self.out}/*/{name}") if "/checkpoints/" not in path]

    def steps(self):
        """Records of its members' steps, as far as they are written."""
        for path in self.logs("member-*.jsonl"):
            for line in lines_of(path):
                if line.startswith('{"step"'):
                    yield json.loads(line)["step"]

    def step(self):
        """The last step that one of its members has done, or -1. Reads only what is new in their logs."""
        for path in self.logs("member-*.jsonl"):
            with open(path, "rb") as log:
                log.seek(self.read[path])
                new = log.read()
            new = new[: new.rfind(b"\n") + 1]
            self.read[path] += len(new)
            steps = (json.loads(line)["step"]["step"] for line in new.splitlines() if line.startswith(b'{"step"'))
            self.last = max(self.last, *steps, -1)
        return self.last

    def events(self):
        """What it logged: pairs of kind and contents."""
        for path in self.logs("launcher.jsonl"):
            for line in lines_of(path):
                event = json.loads(line)
                if len(event) == 1:
                    yield from event.items()

    def checkpoint(self):
        """The newest checkpoint and the steps done there."""
        found = sorted(self.out.glob("checkpoints/step-*"))
        if not found:
            raise Failure(f"h{self.host} has saved no checkpoint\n{self.tail()}")
        return found[-1], int(found[-1].name.removeprefix("step-"))


def lines_of(path):
    """Whole lines of a log that may still be written."""
    try:
        text = pathlib.Path(path).read_text()
    except OSError:
        return []
    return text[: text.rfind("\n") + 1].splitlines()


def wait_until(what, condition, patience_s=PATIENCE_S):
    """Waits for a condition."""
    until = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > until:
            raise Failure(f"waited {patience_s} s in vain until {what}")
        time.sleep(0.02)


def hash_of(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


class Lab:
    """One network after another, and the trainings on them."""

    def __init__(self, program, folder, recipe):
        self.program, self.folder, self.recipe = pathlib.Path(program), pathlib.Path(folder), recipe
        self.environment = {**os.environ, "PACELINE_SECRET": SECRET}
        self.launchers, self.names, self.port = [], collections.Counter(), PORT

    def new_folder(self, name):
        self.names[name] += 1
        count = self.names[name]
        return self.folder / (name if count == 1 else f"{name}-{count}")

    def run(self, *words):
        """A program that must succeed, outside of all hosts."""
        done = subprocess.run([self.program, *map(str, words)], capture_output=True, text=True)
        if done.returncode:
            raise Failure(f"{' '.join(map(str, words))} ended with status {done.returncode}\n{done.stderr[-2000:]}")

    def run_alone(self, name, *options):
        """A training on one host, to its end; its folder."""
        out = self.folder / name
        self.run(*self.recipe, "--pin", "no", "--out", out, *options)
        return out

    def resume(self, checkpoint, out):
        """Goes on from a checkpoint on one host, to the end."""
        self.run("train", "--resume", checkpoint, "--workers", 2, "--out", out)
        return out

    def begin(self):
        """What begins here meets at a port of its own."""
        self.port += 1
        self.launchers = []

    def start(self, host, hosts, *options, workers=1):
        """Starts a launcher on a host."""
        out = self.new_folder(f"p{self.port}-h{host}")
        # Hosts of one machine have the same cores: the scheduler shares them out.
        command = [self.program, *self.recipe, "--hosts", hosts, "--rendezvous", f"tcp://{address(1)}:{self.port}"]
        command += ["--workers", workers, "--pin", "no", "--out", out, *options]
        launcher = Launcher(host, list(map(str, command)), out, self.environment)
        self.launchers.append(launcher)
        return launcher

    def end(self):
        """Ends what is left of a training."""
        for launcher in self.launchers:
            if launcher.is_running():
                launcher.process.kill()
            launcher.process.wait()
            launcher.file.close()

    def expect_nobody(self):
        """No process of a training may be left."""

        def left():
            found = []
            for process in glob.glob("/proc/[0-9]*/exe"):
                try:
                    found += [process.split("/")[2]] if os.readlink(process) == str(self.program) else []
                except OSError:
                    pass  # it has just ended
            return found

        until = time.monotonic() + 5
        while left() and time.monotonic() < until:
            time.sleep(0.05)
        if left():
            raise Failure(f"processes are left: {', '.join(left())}")
