"""Trainings through a real Slurm: the part `slurm` of `peers/engines`.

Starts munged, slurmctld and two slurmd on hosts made of namespaces (hosts/lab.py), and submits deploy/slurm/*.sbatch to them. Exit statuses and
messages must be right and weights those of one host, bit for bit. All of it is inside of hosts/inside: nothing is left of it. Needs root.
"""

import glob
import json
import os
import pathlib
import random
import re
import secrets
import shutil
import signal
import struct
import subprocess
import sys
import time
import zlib

PEERS = pathlib.Path(__file__).resolve().parent
ROOT = PEERS.parent
sys.path.insert(0, str(ROOT / "hosts"))

from lab import Failure, Network, address, hash_of, lines_of, popen_on, wait_until  # noqa: E402

PACKAGES = ["slurmctld", "slurmd", "slurm-client", "munge", "libpmix-dev", "libopenmpi3", "libmpich12", "iproute2", "util-linux"]
HOSTS = 2
STEPS = 100
STRIKE = 20  # the step after which something happens
CORES = 2  # of each host; all hosts have the machine's first ones
PATIENCE_S = 120

# Long enough to lose a task in it, and little to compute: the bench's own job tests 10,000 images in the end.
JOB = ["train", "mobilenet_v2", "--input", "32x32", "--global-batch", "8", "--shards", "4", "--threads", "1", "--seed", "7"]
JOB += ["--lr", "0.001", "--eval-every", "0", "--checkpoint-every", "0", "--steps", str(STEPS)]
IMAGES = 64

CONFIGURATION = """
ClusterName=paceline
SlurmctldHost=h1({first})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
KillWait=10
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def install(_bench):
    from engines import install_apt

    install_apt(*PACKAGES)


# ---- The cluster ------------------------------------------------------------------------------------------------------


class Cluster:
    """Slurm on hosts h1 and h2; h1 has the controller, and is where jobs are submitted."""

    def __init__(self, folder, program):
        self.folder, self.program, self.daemons = pathlib.Path(folder), pathlib.Path(program), []
        self.network = Network(HOSTS)
        self.work = self.folder / "work"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PACELINE_"))}
        self.environment |= {"SLURM_CONF": str(self.folder / "slurm.conf"), "PACELINE": str(self.program)}

    def __enter__(self):
        self.network.__enter__()
        hosts = range(1, HOSTS + 1)
        for name in ["state", "work", "pmix"] + [f"{kind}.h{host}" for kind in ("spool", "pmix") for host in hosts]:
            (self.folder / name).mkdir(parents=True)
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{address(host)} h{host}\n" for host in hosts))
        # The mounts are this test's own.
        subprocess.run(["mount", "--bind", self.folder / "hosts", "/etc/hosts"], check=True)
        nodes = "\n".join(f"NodeName=h{host} NodeAddr={address(host)} CPUs={CORES} RealMemory=1000" for host in hosts)
        text = CONFIGURATION.format(first=address(1), folder=self.folder, nodes=nodes)
        (self.folder / "slurm.conf").write_text(text)
        # PMIx keeps files of its own on every node.
        (self.folder / "mpi.conf").write_text(f"PMIxCliTmpDirBase={self.folder}/pmix\n")
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        munge = {"socket": "sock", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        files = [f"--{option}={self.folder}/munge.{end}" for option, end in munge.items()]
        self.start(1, ["munged", "--foreground", "--force", *files], "munged")
        wait_until("munged listened", (self.folder / "munge.sock").exists)
        self.start(1, ["slurmctld", "-D", "-i"], "slurmctld")
        for host in hosts:
            own = f'mount --bind "{self.folder}/pmix.h{host}" "{self.folder}/pmix" && exec slurmd -D'
            self.start(host, ["unshare", "--mount", "sh", "-c", own], f"slurmd.h{host}")
        wait_until("both nodes were idle", lambda: self.ask("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == str(HOSTS))
        return self

    def __exit__(self, *_):
        self.ask("scancel", "--user=root", "--signal=KILL", "--full")
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self.network.__exit__()

    def start(self, host, command, name):
        with open(self.folder / f"{name}.out", "wb") as said:
            daemon = popen_on(host, command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=self.environment)
        self.daemons.append(daemon)

    def run(self, *command, **variables):
        """A command on h1: its status and what it said."""
        process = popen_on(
            1, list(map(str, command)), cwd=self.work, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env=self.environment | variables
        )
        try:
            said = process.communicate(timeout=PATIENCE_S)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            raise Failure(f"{command[0]} took more than {PATIENCE_S} s: {process.communicate()[0]}") from None
        return process.returncode, said

    def ask(self, *command):
        return self.run(*command)[1]

    def submit(self, script, *words, **variables):
        """A job of a script, with these options of a training."""
        options = [f"--nodes={HOSTS}", f"--cpus-per-task={CORES}"]
        path = ROOT / "deploy" / "slurm" / script if "/" not in str(script) else script
        status, said = self.run("sbatch", "--parsable", *options, path, *words, **variables)
        if status:
            raise Failure(f"sbatch {script}: {said}")
        return Job(self, int(said.split(";")[0]))


class Job:
    """A batch job and its training."""

    def __init__(self, cluster, number):
        self.cluster, self.number = cluster, number
        self.out = cluster.work / f"paceline-{number}"

    def fields(self):
        text = self.cluster.ask("scontrol", "show", "job", "-o", self.number)
        return dict(re.findall(r"(\w+)=(\S*)", text))

    def said(self):
        try:
            return self.out.with_name(self.out.name + ".log").read_text(errors="replace")
        except OSError:
            return ""

    def step(self):
        """The last step that is in a log of its members."""
        last = -1
        for path in glob.glob(f"{self.out}/*/member-*.jsonl"):
            records = (json.loads(line) for line in lines_of(path) if line.startswith('{"step"'))
            last = max([last, *(record["step"]["step"] for record in records)])
        return last

    def reach(self, step):
        def reached():
            if self.fields().get("JobState") in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"):
                raise Failure(f"job {self.number} ended before step {step}:\n{self.said()}")
            return self.step() >= step

        wait_until(f"job {self.number} had done step {step}", reached)

    def finish(self):
        """Its state and its exit status."""
        ended = lambda: self.fields().get("JobState") not in ("PENDING", "RUNNING", "COMPLETING", "REQUEUED", "CONFIGURING")
        wait_until(f"job {self.number} ended", ended, PATIENCE_S)
        fields = self.fields()
        return fields["JobState"], fields["ExitCode"]

    def launcher(self, host):
        """The process of this job's task on a host."""
        for path in glob.glob("/proc/[0-9]*/exe"):
            process = pathlib.Path(path).parent
            try:
                is_it = os.readlink(path) == str(self.cluster.program)
                environment = (process / "environ").read_bytes().split(b"\0") if is_it else []
            except OSError:
                continue  # it has just ended
            # Slurm's variables are a task's alone: workers do not have them.
            if {f"SLURM_JOB_ID={self.number}".encode(), f"SLURM_NODEID={host - 1}".encode()} <= set(environment):
                return int(process.name)
        raise Failure(f"no task of job {self.number} on h{host}")

    def kill(self, host):
        os.kill(self.launcher(host), signal.SIGKILL)


# ---- Scenes -----------------------------------------------------------------------------------------------------------


class Stage:
    """What scenes have; what they find goes out as JSON lines."""

    def __init__(self, cluster, words, reference):
        self.cluster, self.words, self.reference = cluster, words, reference
        self.runs = 0

    def tell(self, kind, **fields):
        print(json.dumps({"kind": kind, **fields}), flush=True)

    def check(self, what, held, detail=""):
        self.tell("check", what=what, held=bool(held), detail=detail)
        return held

    def is_same(self, folder):
        """Whether the weights in a folder are those of one host."""
        path = pathlib.Path(folder) / "weights.safetensors"
        return path.exists() and hash_of(path) == self.reference

    def expect(self, what, job, ended, *sentences):
        """A job has ended so, and has said so."""
        found, said = job.finish(), " ".join(job.said().split())
        missing = [sentence for sentence in sentences if sentence not in said]
        detail = f"it ended with {found} instead of {ended} and did not say {missing}:\n{job.said()}"
        return self.check(what, found == ended and not missing, detail)

    def srun(self, *words, **variables):
        """A training through srun, without sbatch: its status, what it said, its folder."""
        self.runs += 1
        out = self.cluster.work / f"srun-{self.runs}"
        status, said = self.cluster.run("srun", f"--nodes={HOSTS}", *words, "--out", out, **variables)
        return status, said, out


DONE = ("COMPLETED", "0:0")
SECRET = "a secret for tests, of no value"


def train_through_srun(stage):
    program = stage.cluster.program
    for mpi, engine, variables in [
        ("none", "Slurm, tcp", {"PACELINE_SECRET": SECRET}),
        ("pmix", "Slurm, Open MPI (pmix)", {}),
        ("pmi2", "Slurm, MPICH (pmi2)", {}),
    ]:
        begun = time.monotonic()
        status, said, out = stage.srun(f"--mpi={mpi}", "--cpus-per-task=1", program, *stage.words, "--workers", "1", **variables)
        took, same = time.monotonic() - begun, stage.is_same(out)
        held = stage.check(f"slurm: srun --mpi={mpi}: two hosts end with the weights of one", status == 0 and same, said)
        stage.tell("row", engine=engine, fault="-", outcome="done" if held else "FAILED", seconds=took, same=same)


def refuse_what_cannot_be(stage):
    """Mistakes that end before anything starts, with a sentence and status 2."""
    program, two = stage.cluster.program, ["--workers", "2"]
    tcp = {"PACELINE_SECRET": SECRET}
    status, said, _ = stage.srun("--mpi=none", program, *stage.words, *two, **tcp)
    held = status == 2 and "srun has left this launcher 1 core" in said and "--cpus-per-task" in said
    stage.check("slurm: srun without --cpus-per-task: the error names it", held, said)
    status, said, _ = stage.srun("--mpi=none", "--cpus-per-task=2", program, *stage.words, *two)
    stage.check("slurm: without a secret: the error names --secret-file", status == 2 and "--secret-file" in said, said)
    status, said, _ = stage.srun("--mpi=none", program, *stage.words, "--wire", "mpi")
    stage.check("slurm: --wire mpi without PMI: the error names --mpi=pmix", status == 2 and "srun --mpi=pmix" in said, said)


def train_through_sbatch(stage):
    for script, variables, engine in [
        ("static.sbatch", {}, "static.sbatch (tcp)"),
        ("mpi.sbatch", {}, "mpi.sbatch (Open MPI, pmix)"),
        ("mpi.sbatch", {"MPI": "pmi2"}, "mpi.sbatch (MPICH, pmi2)"),
        ("elastic.sbatch", {}, "elastic.sbatch (tcp)"),
    ]:
        begun = time.monotonic()
        # Ranks of MPI see that these hosts are one machine, and share its cores.
        workers = "1" if script == "mpi.sbatch" else "2"
        job = stage.cluster.submit(script, *stage.words[1:], "--workers", workers, **variables)
        held = stage.expect(f"slurm: {engine}: it ends well", job, DONE, "Weights: ")
        took, same = time.monotonic() - begun, stage.is_same(job.out)
        stage.check(f"slurm: {engine}: the weights are those of one host", same, job.said())
        left = job.out.with_name(job.out.name + ".secret").exists()
        stage.check(f"slurm: {engine}: no secret is left", not left)
        stage.tell("row", engine=engine, fault="-", outcome="done" if held else "FAILED", seconds=took, same=same)


def lose_a_static_host(stage):
    job = stage.cluster.submit("static.sbatch", *stage.words[1:], "--workers", "1")
    job.reach(STRIKE)
    begun = time.monotonic()
    job.kill(2)
    words = ["host 1 (h2", "was lost", "To resume from step-", "task 1: Killed"]
    held = stage.expect("slurm: static.sbatch, a killed task: the other saves and ends", job, ("FAILED", "137:0"), *words)
    took = time.monotonic() - begun
    same = resume_alone(stage, job, "static.sbatch, a killed task")
    outcome = "the other saves and ends; resumed on one host" if held else "FAILED"
    stage.tell("row", engine="static.sbatch (tcp)", fault="a task is killed", outcome=outcome, seconds=took, same=same)


def lose_a_rank(stage):
    words = [*stage.words[1:], "--workers", "1"]
    words[words.index("--checkpoint-every") + 1] = "1"
    job = stage.cluster.submit("mpi.sbatch", *words)
    job.reach(STRIKE)
    begun = time.monotonic()
    job.kill(2)
    held = stage.expect("slurm: mpi.sbatch, a killed task: srun ends the job", job, ("FAILED", "137:0"), "task 1: Killed")
    took = time.monotonic() - begun
    same = resume_alone(stage, job, "mpi.sbatch, a killed task")
    outcome = "srun ends the job; resumed on one host" if held else "FAILED"
    stage.tell("row", engine="mpi.sbatch (Open MPI, pmix)", fault="a task is killed", outcome=outcome, seconds=took, same=same)


def resume_alone(stage, job, title):
    """Goes on from a job's newest checkpoint on one host; whether it ends with the weights of one."""
    out = job.out.with_name(f"resumed-{job.number}")
    said = stage.cluster.ask(stage.cluster.program, "train", "--resume", job.out, "--workers", "1", "--out", out)
    same = stage.is_same(out)
    return stage.check(f"slurm: {title}: resumed on one host, with the weights of one", same, said)


def outlive(stage, title, strike, *sentences, restarts):
    """The elastic script ends well, whatever happens: `strike(job)`."""
    job = stage.cluster.submit("elastic.sbatch", *stage.words[1:], "--workers", "1")
    job.reach(STRIKE)
    begun = time.monotonic()
    strike(job)
    held = stage.expect(f"slurm: elastic.sbatch, {title}: it ends well", job, DONE, *sentences)
    took, same, restarted = time.monotonic() - begun, stage.is_same(job.out), job.fields().get("Restarts")
    stage.check(f"slurm: elastic.sbatch, {title}: the weights are those of one host", same, job.said())
    stage.check(f"slurm: elastic.sbatch, {title}: {restarts} requeues", restarted == str(restarts), job.said())
    outcome = ("resumed after a requeue" if restarts else "the other goes on") if held else "FAILED"
    stage.tell("row", engine="elastic.sbatch (tcp)", fault=title, outcome=outcome, seconds=took, same=same)


def outlive_losses(stage):
    outlive(stage, "a task is killed", lambda job: job.kill(2), "host 1 (h2", "was lost", restarts=0)
    outlive(stage, "the first task is killed", lambda job: job.kill(1), "the first host (", "cannot be reached", "resumed at step", restarts=1)
    requeue = lambda job: stage.cluster.ask("scontrol", "requeue", job.number)
    outlive(stage, "the job is requeued", requeue, "resumed at step", restarts=1)
    # As Slurm does some time before the job's limit.
    end = lambda job: stage.cluster.ask("scancel", "--signal=TERM", job.number)
    outlive(stage, "tasks are asked to end", end, "interrupted", "resumed at step", restarts=1)
    outlive(stage, "a node is unplugged", lambda _: stage.cluster.network.cut(2), "host 1 (h2", "was lost", restarts=0)


SCENES = [train_through_srun, refuse_what_cannot_be, train_through_sbatch, lose_a_static_host, lose_a_rank, outlive_losses]


def play_inside(program, folder, words, reference):
    with Cluster(folder, program) as cluster:
        stage = Stage(cluster, words, reference)
        for scene in SCENES:
            try:
                scene(stage)
            except Failure as failure:
                stage.check(f"slurm: {scene.__name__}", False, str(failure))
        cluster.network.mend(2)
        left = lambda: [path for path in glob.glob("/proc/[0-9]*/exe") if points_to(path, program)]
        try:
            wait_until("all processes had ended", lambda: not left(), 30)
        except Failure:
            pass
        stage.check("slurm: no process of a training is left", not left(), " ".join(left()))


def draw_images(folder):
    """Pictures of two classes, one in five for the test; their folder."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    source = random.Random(7)
    for number in range(IMAGES):
        path = folder / ("val" if number % 5 == 0 else "train") / f"class-{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = b"".join(b"\0" + source.randbytes(3 * 32) for _ in range(32))
        head = struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0)
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
    return folder


def points_to(link, program):
    try:
        return os.readlink(link) == str(program)
    except OSError:
        return False  # it has just ended


def play(bench):
    folder = bench.scratch / "slurm"
    folder.mkdir()
    # A copy of its own: whoever runs it belongs to this test.
    program = shutil.copy(bench.program, folder / "paceline")
    words = [*JOB, "--data", f"images:{draw_images(folder / 'images')}"]
    alone = folder / "alone"
    done = subprocess.run([program, *words, "--workers", "1", "--out", alone], capture_output=True, text=True)
    if done.returncode:
        raise Failure(f"the training on one host failed: {done.stderr}")
    command = [ROOT / "hosts" / "inside", "python3", __file__, program, folder / "cluster", bench.weights(alone), *words]
    with subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as inside:
        for line in inside.stdout:
            told = json.loads(line)
            if told.pop("kind") == "check":
                bench.check(**told)
            else:
                bench.row(hosts=str(HOSTS), **told)
    bench.check("slurm: to its end", inside.returncode == 0)


if __name__ == "__main__":
    play_inside(pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[4:], sys.argv[3])
