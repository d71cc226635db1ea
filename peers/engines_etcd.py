"""etcd: trainings that meet in a real one, which is killed, restarted and emptied, with the first host lost like any other."""

import base64
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from random import Random

from engines import Failure, install_apt, plain_environment

APT = ["etcd-server", "etcd-client", "openssl"]
PATIENCE_S = 300
LENGTH = 300  # steps of a training in which something happens
SECRET = "what the hosts of a check know"
AWAY_S = 5
SOAK_STEPS = 200  # for each kill


def install(bench):
    install_apt(*APT)


class Etcd:
    """A real etcd on loopback."""

    def __init__(self, folder, tls=False, clients=False, program="etcd"):
        self.data, self.tls, self.process, self.program = folder / "data", tls, None, program
        folder.mkdir(parents=True)
        self.log = folder / "etcd.log"
        self.port, self.peer_port = free_ports(2)
        self.places = f"127.0.0.1:{self.port}"
        self.env, self.options, scheme = {}, [], "http"
        if tls:
            scheme = "https"
            self.make_certificates(folder, clients)
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        peer = f"http://127.0.0.1:{self.peer_port}"
        self.options += ["--name", "one", "--data-dir", str(self.data), "--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        self.options += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}"]
        self.start()

    def make_certificates(self, folder, clients):
        """An authority, and the certificate that it has signed for etcd; with `clients` also the one that it asks of them."""
        run = lambda *words: subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)
        named = lambda name: [folder / f"{name}.key", folder / f"{name}.csr", folder / f"{name}.pem"]
        ca_key, _, ca = named("ca")
        run("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", ca_key, "-out", ca, "-subj", "/CN=check", "-days", 2)
        extensions = folder / "names"
        extensions.write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
        for name in ("etcd", "host") if clients else ("etcd",):
            key, request, certificate = named(name)
            run("req", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", request, "-subj", f"/CN={name}")
            run("x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-out", certificate, "-days", 2, "-extfile", extensions)
        self.options += ["--cert-file", str(folder / "etcd.pem"), "--key-file", str(folder / "etcd.key")]
        self.env = {"ETCDCTL_CACERT": str(ca)}
        if clients:
            self.options += ["--client-cert-auth", "--trusted-ca-file", str(ca)]
            self.env |= {"ETCDCTL_CERT": str(folder / "host.pem"), "ETCDCTL_KEY": str(folder / "host.key")}

    def start(self):
        with self.log.open("a") as log:
            self.process = subprocess.Popen([self.program, *self.options], stdout=log, stderr=log, start_new_session=True)
        until = time.monotonic() + 20
        while self.control("endpoint", "health").returncode:
            if time.monotonic() > until or self.process.poll() is not None:
                raise Failure(f"etcd does not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.1)

    def control(self, *words):
        env = {**os.environ, "ETCDCTL_API": "3", **self.env}
        return subprocess.run(["etcdctl", "--endpoints", self.url, *words], env=env, capture_output=True, text=True)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def freeze(self, seconds):
        """Lets it answer nobody: its connections stay open."""
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.process.send_signal(signal.SIGCONT)

    def lose_data(self):
        shutil.rmtree(self.data)

    def post(self, path, body):
        request = urllib.request.Request(f"{self.url}/v3/{path}", json.dumps(body).encode())
        return json.load(urllib.request.urlopen(request, timeout=5))

    def rosters(self, key):
        """All rosters that were ever written down, in order: run, generation."""
        coded = base64.b64encode(key.encode()).decode()
        last, found = int(self.post("kv/range", {"key": coded})["header"]["revision"]), []
        for revision in range(1, last + 1):
            pairs = self.post("kv/range", {"key": coded, "revision": revision}).get("kvs", [])
            if pairs and int(pairs[0]["mod_revision"]) == revision:
                record = json.loads(base64.b64decode(pairs[0]["value"]))
                found.append((record["run"], record["roster"]["generation"]))
        return found


class Member(Etcd):
    """One of several etcds that are one; `all` are the ports of each, for clients and for the others."""

    def __init__(self, folder, number, all):
        self.data, self.tls, self.process, self.program, self.env = folder / f"data-{number}", False, None, "etcd", {}
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / f"etcd-{number}.log"
        self.places = ",".join(f"127.0.0.1:{port}" for port, _ in all)
        url, peer = (f"http://127.0.0.1:{port}" for port in all[number])
        self.url = url
        together = ",".join(f"m{place}=http://127.0.0.1:{port}" for place, (_, port) in enumerate(all))
        self.options = ["--name", f"m{number}", "--data-dir", str(self.data), "--listen-client-urls", url, "--advertise-client-urls", url]
        self.options += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", together]
        with self.log.open("a") as log:
            self.process = subprocess.Popen([self.program, *self.options], stdout=log, stderr=log, start_new_session=True)

    def wait(self):
        until = time.monotonic() + 20
        while self.control("endpoint", "health").returncode:
            if time.monotonic() > until:
                raise Failure(f"etcd does not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.1)


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Host:
    """A launcher."""

    def __init__(self, bench, etcd, name, prefix, *options, steps=LENGTH, env=None):
        self.out, self.words = bench.scratch / name, bench.scratch / f"{name}.txt"
        scheme = "etcds" if etcd.tls else "etcd"
        place = f"{scheme}://{etcd.places}/{prefix}"
        command = [bench.program, *job_of(bench, steps), "--workers", "1", "--rendezvous", place, "--out", self.out, *options]
        env = {**plain_environment(PACELINE_SECRET=SECRET), **etcd.env, **(env or {})}
        with self.words.open("w") as words:
            self.process = subprocess.Popen(
                list(map(str, command)), stdin=subprocess.DEVNULL, stdout=words, stderr=words, env=env, cwd=bench.scratch, start_new_session=True
            )

    def said(self):
        return self.words.read_text(errors="replace")

    def step(self):
        """The last step that a member of it has done, or -1."""
        found = (re.findall(r'{"step":{"step":(\d+)', path.read_text(errors="replace")) for path in self.out.glob("*/member-*.jsonl"))
        return max((int(numbers[-1]) for numbers in found if numbers), default=-1)

    def wait_for(self, step):
        until = time.monotonic() + PATIENCE_S
        while self.step() < step:
            if self.process.poll() is not None or time.monotonic() > until:
                raise Failure(f"{self.out.name} does not reach step {step}:\n{self.said()[-2000:]}")
            time.sleep(0.02)

    def wait(self):
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


def job_of(bench, steps):
    job = list(bench.job)
    job[job.index("--steps") + 1] = str(steps)
    return job


def reference(bench, steps):
    """The weights of a training of so many steps on one host."""
    out = bench.scratch / f"etcd-reference-{steps}"
    if not out.exists():
        command = [bench.program, *job_of(bench, steps), "--workers", "1", "--out", out]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=plain_environment())
        if done.returncode:
            raise Failure(f"the training on one host failed:\n{done.stdout}{done.stderr}")
    return bench.weights(out)


def start(bench, etcd, prefix, count, *options, steps=LENGTH):
    """Hosts of one training, the first of them first."""
    hosts = [Host(bench, etcd, f"{prefix}-a", prefix, *options, steps=steps)]
    until = time.monotonic() + 20
    while "first" not in etcd.control("get", f"{prefix}/first", "--keys-only").stdout:
        if time.monotonic() > until:
            raise Failure(f"nobody is first:\n{hosts[0].said()}")
        time.sleep(0.02)
    return hosts + [Host(bench, etcd, f"{prefix}-{chr(98 + number)}", prefix, *options, steps=steps) for number in range(count - 1)]


def gap(host, since):
    """The longest time between two steps of a host that began after a moment, on this machine's clock."""
    ends = []
    for path in host.out.glob("*/member-*.jsonl"):
        ends += [int(end) / 1e9 for end in re.findall(r'{"step":{"step":\d+,(?:"generation":\d+,)?"begin":\d+,"end":(\d+)', path.read_text(errors="replace"))]
    ends = sorted(end for end in ends if end >= since - 1)
    return max((after - before for before, after in zip(ends, ends[1:])), default=None)


def conclude(bench, etcd, prefix, hosts, what, fault, steps=LENGTH, since=None, lost=0):
    """All that are left end well, and exactly one of them has the weights, which are those of one host."""
    codes = [host.wait() for host in hosts]
    said = "\n".join(f"{host.out.name}: {host.said()[-1500:]}" for host in hosts)
    ok = bench.check(f"{what}: all that are left end well", all(code == 0 for code in codes), said)
    led = [host for host in hosts if (host.out / "weights.safetensors").exists()]
    same = len(led) == 1 and bench.weights(led[0].out) == reference(bench, steps)
    bench.check(f"{what}: one of them has the weights of one host", same, said)
    written = etcd.rosters(f"{prefix}/roster") if not etcd.tls else []
    bench.check(f"{what}: no number of a roster was used twice", len(set(written)) == len(written), str(written))
    left = etcd.control("get", "--prefix", f"{prefix}/", "--keys-only").stdout.split()
    bench.check(f"{what}: nothing is left in etcd", not left, str(left))
    took = gap(led[0], since) if led and since else None
    bench.row("etcd", str(len(hosts) + lost), fault, "goes on" if ok else "fails", took, same)
    for host in hosts:
        host.kill()


def lose_hosts(bench, etcd, prefix, fault):
    what = f"{fault} lost"
    hosts = start(bench, etcd, prefix, 3, "--elastic", "--hosts", "1:3")
    hosts[2].wait_for(LENGTH // 5)
    victim = hosts.pop(0 if "first" in fault else 1)
    since = time.clock_gettime(time.CLOCK_MONOTONIC)
    victim.kill()
    conclude(bench, etcd, prefix, hosts, what, f"{fault} killed", since=since, lost=1)


def lose_etcd(bench, etcd, prefix, forgets, then_first):
    """etcd is killed and started again while hosts train; then a host comes, and the first is lost."""
    what = "etcd loses its data" if forgets else f"etcd killed for {AWAY_S} s"
    steps = LENGTH * 2
    hosts = start(bench, etcd, prefix, 2, "--elastic", "--hosts", "1:3", steps=steps)
    hosts[1].wait_for(LENGTH // 10)
    etcd.kill()
    before = hosts[1].step()
    time.sleep(AWAY_S)
    bench.check(f"{what}: the training goes on meanwhile", hosts[1].step() > before + 5, hosts[0].said()[-1500:])
    if forgets:
        etcd.lose_data()
    etcd.start()
    hosts.append(Host(bench, etcd, f"{prefix}-c", prefix, "--elastic", "--hosts", "1:3", steps=steps))
    hosts[2].wait_for(hosts[1].step())
    bench.check(f"{what}: the user is told", "goes on with the hosts that it has" in hosts[0].said(), hosts[0].said()[-1500:])
    since, fault = None, what
    if then_first:
        fault = f"{what}; then a host comes, and the first is killed"
        since = time.clock_gettime(time.CLOCK_MONOTONIC)
        hosts.pop(0).kill()
    conclude(bench, etcd, prefix, hosts, what, fault, steps=steps, since=since, lost=1 if then_first else 0)


def freeze_etcd(bench, etcd, prefix):
    """etcd answers nobody until all leases have run out, and a host comes meanwhile: it joins the training, and begins none of its own."""
    what, steps = f"etcd frozen for {AWAY_S} s", LENGTH * 3
    hosts = start(bench, etcd, prefix, 2, "--elastic", "--hosts", "1:3", steps=steps)
    hosts[1].wait_for(LENGTH // 10)
    before = hosts[1].step()
    late = []

    def come():
        time.sleep(1)
        late.append(Host(bench, etcd, f"{prefix}-c", prefix, "--elastic", "--hosts", "1:3", steps=steps))

    coming = threading.Thread(target=come)
    coming.start()
    etcd.freeze(AWAY_S)
    coming.join()
    bench.check(f"{what}: the training goes on meanwhile", hosts[1].step() > before + 5, hosts[0].said()[-1500:])
    hosts += late
    joined = False
    with contextlib.suppress(Failure):
        hosts[2].wait_for(hosts[1].step())
        joined = True
    bench.check(f"{what}: whoever comes meanwhile joins the training", joined, hosts[2].said()[-1500:])
    conclude(bench, etcd, prefix, hosts, what, f"{what}; a host comes meanwhile", steps=steps)


def lose_member(bench, prefix):
    """The first of three members of etcd is frozen while hosts train, and then the first host is lost."""
    what, steps = "one of three etcds frozen", LENGTH * 2
    ports = free_ports(6)
    members = [Member(bench.scratch / "etcds-3", number, list(zip(ports[::2], ports[1::2]))) for number in range(3)]
    try:
        for member in members:
            member.wait()
        # Whatever is asked of a member is asked of one that answers.
        asked = members[1]
        hosts = start(bench, asked, prefix, 3, "--elastic", "--hosts", "1:3", steps=steps)
        hosts[2].wait_for(LENGTH // 10)
        members[0].process.send_signal(signal.SIGSTOP)
        time.sleep(AWAY_S)
        there = asked.control("get", "--prefix", f"{prefix}/", "--keys-only").stdout.split()
        bench.check(f"{what}: no lease has run out", f"{prefix}/first" in there and len(there) == 5, f"{there}\n{hosts[0].said()[-1500:]}")
        since = time.clock_gettime(time.CLOCK_MONOTONIC)
        hosts.pop(0).kill()
        conclude(bench, asked, prefix, hosts, what, f"{what}; then the first host is killed", steps=steps, since=since, lost=1)
    finally:
        for member in members:
            member.kill()


def soak(bench, etcd, count):
    """Hosts, the first among them, and etcd itself are killed one after the other, and come again."""
    random, steps = Random(7), SOAK_STEPS * count
    options = ["--elastic", "--hosts", "1:3"]
    hosts, lost, restarts = start(bench, etcd, "soak", 3, *options, steps=steps), 0, 0
    for number in range(count):
        newest = max(host.step() for host in hosts)
        for host in hosts:
            host.wait_for(newest + 10)
        if random.random() < 0.25:
            etcd.kill()
            time.sleep(random.uniform(0, 3))
            etcd.start()
            restarts += 1
        else:
            hosts.pop(random.randrange(len(hosts))).kill()
            hosts.append(Host(bench, etcd, f"soak-{number}", "soak", *options, steps=steps))
            lost += 1
        print(f"{number + 1} of {count}: {lost} hosts killed, etcd killed {restarts} times, step {hosts[0].step()} of {steps}", flush=True)
    conclude(bench, etcd, "soak", hosts, "soak", f"{lost} hosts and {restarts} times etcd killed", steps=steps)


def play(bench):
    version = subprocess.run(["etcd", "--version"], capture_output=True, text=True).stdout.splitlines()[0]
    print(version)
    etcd = Etcd(bench.scratch / "etcd")
    try:
        if bench.soak:
            soak(bench, etcd, bench.soak)
            return
        if bench.quick:
            lose_hosts(bench, etcd, "quick", "first host")
            lose_etcd(bench, etcd, "away", forgets=False, then_first=True)
            return
        hosts = start(bench, etcd, "plain", 2, "--hosts", "2", steps=40)
        conclude(bench, etcd, "plain", hosts, "two hosts", "none", steps=40)
        lose_hosts(bench, etcd, "first", "first host")
        lose_hosts(bench, etcd, "second", "other host")
        lose_etcd(bench, etcd, "away", forgets=False, then_first=True)
        lose_etcd(bench, etcd, "empty", forgets=True, then_first=False)
        freeze_etcd(bench, etcd, "frozen")
    finally:
        etcd.kill()
    lose_member(bench, "three")
    secure = Etcd(bench.scratch / "etcds", tls=True)
    try:
        for words in (["user", "add", "root:sesame"], ["user", "grant-role", "root", "root"], ["auth", "enable"]):
            secure.control(*words)
        secure.env |= {"ETCDCTL_USER": "root:sesame"}
        refused = Host(bench, secure, "tls-x", "tls", "--hosts", "2", steps=40, env={"ETCDCTL_USER": "root:wrong"})
        bench.check("TLS: a wrong password is refused with status 2", refused.wait() == 2 and "refuses" in refused.said(), refused.said())
        hosts = start(bench, secure, "tls", 2, "--hosts", "2", steps=40)
        conclude(bench, secure, "tls", hosts, "TLS and a password", "none; TLS and a password", steps=40)
    finally:
        secure.kill()
    mutual = Etcd(bench.scratch / "etcd-mutual", tls=True, clients=True)
    try:
        unknown = Host(bench, mutual, "unknown-x", "mutual", "--hosts", "2", "--host-wait", "5", steps=40, env={"ETCDCTL_CERT": "", "ETCDCTL_KEY": ""})
        bench.check("certificates: a host without one is refused", unknown.wait() in (1, 2) and "certificate" in unknown.said().lower(), unknown.said())
        hosts = start(bench, mutual, "mutual", 2, "--hosts", "2", steps=40)
        conclude(bench, mutual, "mutual", hosts, "certificates of clients", "none; certificates of clients", steps=40)
    finally:
        mutual.kill()
