"""A stand-in for what Kubernetes does with the pods of an Indexed Job. To be run through `hosts/inside`.

Each pod has network, process, mount and host name namespaces of its own, an address that no pod had before, a root that it cannot write to, and
a user who is not root: its command is process 1. The Job starts pods by index, ends them with SIGTERM and, when the grace period is over, with
SIGKILL, and replaces those that failed, as its manifest says. Names of pods are known later than pods are there, and for a while after them.
"""

import glob
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

import yaml

import lab

USER = "65532"
NAMES_LAG_S = 1.0  # until a name is known, and known to be gone
BACK_OFF_S = 0.3  # a Job waits 10 s and more before it replaces a pod

# Makes a root of this machine's /usr and of little else, and runs the command there. No /dev/shm, as little as a container may have.
ENTER = r"""
set -eu
root=$1 hosts=$2 runs=$3 program=$4
shift 4
mount -t tmpfs -o mode=755 none "$root"
mkdir -p "$root"/usr "$root"/etc "$root"/dev "$root"/proc "$root"/sys "$root"/tmp "$root"/runs "$root"/opt
for link in bin sbin lib lib64; do [ ! -L /$link ] || ln -s usr/$link "$root/$link"; done
mount --rbind /usr "$root/usr"
mount --rbind /sys "$root/sys"
mount -t proc none "$root/proc"
for device in null zero urandom; do : >"$root/dev/$device"; mount --bind /dev/$device "$root/dev/$device"; done
for name in ld.so.cache alternatives; do [ ! -e /etc/$name ] || cp -a /etc/$name "$root/etc/"; done
echo 'hosts: files' >"$root/etc/nsswitch.conf"
: >"$root/etc/hosts"
mount --bind "$hosts" "$root/etc/hosts"
: >"$root/opt/paceline"
mount --bind "$program" "$root/opt/paceline"
mount -t tmpfs -o mode=1777 none "$root/tmp"
mount --bind "$runs" "$root/runs"
mount -o remount,ro "$root"
cd "$root"
exec chroot . /usr/bin/setpriv --reuid USER --regid USER --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all \
    /usr/bin/env -C /tmp "$@"
""".replace("USER", USER)


class Cluster:
    """Machines, names and a volume; at most `most` pods over all its life."""

    def __init__(self, program, folder, most=24):
        self.program, self.folder = pathlib.Path(program), pathlib.Path(folder)
        self.network = lab.Network(most)
        self.machines = iter(range(1, most + 1))
        self.names, self.lock = {}, threading.Lock()
        self.lag_s = NAMES_LAG_S

    def __enter__(self):
        self.network.__enter__()
        self.folder.mkdir()
        self.hosts, self.runs = self.folder / "hosts", self.folder / "runs"
        self.hosts.write_text("127.0.0.1 localhost\n")
        self.runs.mkdir()
        os.chown(self.runs, int(USER), int(USER))
        return self

    def __exit__(self, *reason):
        self.network.__exit__(*reason)

    def tell(self, name, address):
        """Lets a name lead somewhere, or nowhere, after a while."""
        timer = threading.Timer(self.lag_s, self.publish, (name, address))
        timer.daemon = True
        timer.start()

    def publish(self, name, address):
        with self.lock:
            self.names[name] = address
            lines = [f"{place} {name}\n" for name, place in self.names.items() if place]
            # The same file: pods see what is in it, not what has its name.
            self.hosts.write_text("127.0.0.1 localhost\n" + "".join(lines))


class Pod:
    """A pod of a Job."""

    def __init__(self, job, index):
        self.job, self.index = job, index
        cluster = job.cluster
        self.name = f"{job.name}-{index}-{job.started}"
        self.machine = next(cluster.machines)
        self.address = lab.address(self.machine)
        self.words = cluster.folder / f"{self.name}.log"
        self.is_disrupted = self.is_unwanted = self.is_killed = False
        self.asked = self.took_s = None
        container = job.container
        # As the node's agent and the Job controller set them.
        environment = {"PATH": "/opt:/usr/sbin:/usr/bin:/sbin:/bin", "HOSTNAME": f"{job.name}-{index}", "HOME": "/"}
        environment |= {"JOB_COMPLETION_INDEX": str(index)}
        for variable in container["env"]:
            environment[variable["name"]] = job.value(variable, self, environment)
        root = cluster.folder / f"{self.name}.root"
        root.mkdir()
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--uts", "sh", "-c", f"hostname {job.name}-{index}\n{ENTER}", "sh"]
        command += [root, cluster.hosts, cluster.runs, cluster.program, *container["command"], *container["args"]]
        with open(self.words, "wb") as log:
            options = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT, "env": environment}
            self.process = lab.popen_on(self.machine, list(map(str, command)), **options)
        cluster.tell(f"{job.name}-{index}.{job.template['subdomain']}", self.address)

    def first_process(self):
        """What is process 1 within, by its number outside; `None` before there is one, and after."""
        pid = self.process.pid
        try:
            children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return None
        return int(children[0]) if children else None

    def signal(self, number):
        if first := self.first_process():
            os.kill(first, number)

    def end(self):
        """Asks it to end, as before its node is drained or a more important pod takes its place."""
        self.asked = time.monotonic()
        self.signal(signal.SIGTERM)

    def lose(self):
        """Its node is gone."""
        self.is_disrupted = True
        self.signal(signal.SIGKILL)

    def said(self):
        return " ".join(self.words.read_text(errors="replace").split())


class Job:
    """An Indexed Job by its manifest."""

    def __init__(self, cluster, path, secret=lab.SECRET, completions=None, **values):
        self.cluster, self.secret, self.values = cluster, secret, values
        manifest = next(each for each in yaml.safe_load_all(pathlib.Path(path).read_text()) if each["kind"] == "Job")
        self.name, self.spec = manifest["metadata"]["name"], manifest["spec"]
        self.template = self.spec["template"]["spec"]
        self.container = self.template["containers"][0]
        assert self.spec["completionMode"] == "Indexed" and self.spec["podReplacementPolicy"] == "Failed"
        assert self.template["restartPolicy"] == "Never"
        self.completions = completions or self.spec["completions"]
        self.grace_s = self.template["terminationGracePeriodSeconds"]
        self.pods, self.past, self.succeeded, self.free_at = {}, [], set(), {}
        self.started, self.failures, self.failed, self.is_suspended = 0, {}, None, False

    def value(self, variable, pod, others):
        """What a variable of a container is; $(NAME) is another one."""
        if variable["name"] in self.values:
            return self.values[variable["name"]]
        source = variable.get("valueFrom", {})
        if "secretKeyRef" in source:
            return self.secret
        if "fieldRef" in source:
            assert source["fieldRef"]["fieldPath"] == "metadata.name"
            return pod.name
        return re.sub(r"\$\((\w+)\)", lambda found: others[found[1]], variable["value"])

    # ---- What a user or a cluster does ----

    def preempt(self, index):
        self.pods[index].is_disrupted = True
        self.pods[index].end()

    def patch(self, completions):
        """Pods that are too many are those with the highest indexes."""
        self.completions = completions
        for index, pod in self.pods.items():
            if index >= completions:
                pod.is_unwanted = True
                pod.end()

    def suspend(self):
        self.is_suspended = True
        for pod in self.pods.values():
            pod.is_unwanted = True
            pod.end()

    def resume(self):
        self.is_suspended = False

    # ---- What the controller does ----

    def tend(self):
        """One look at everything."""
        now = time.monotonic()
        for index, pod in list(self.pods.items()):
            status = pod.process.poll()
            if status is None:
                if pod.asked and now - pod.asked > self.grace_s and not pod.is_killed:
                    pod.is_killed = True
                    pod.signal(signal.SIGKILL)
                continue
            pod.took_s = now - pod.asked if pod.asked else None
            del self.pods[index]
            self.past.append((pod, status))
            self.cluster.tell(f"{self.name}-{index}.{self.template['subdomain']}", None)
            self.judge(index, pod, status)
        if not self.failed and not self.is_suspended:
            for index in range(self.completions):
                if index not in self.pods and index not in self.succeeded and now >= self.free_at.get(index, 0):
                    self.started += 1
                    self.pods[index] = Pod(self, index)

    def judge(self, index, pod, status):
        """What the end of a pod means, by the policy for failures."""
        if status == 0:
            self.succeeded.add(index)
            return
        self.free_at[index] = time.monotonic() + BACK_OFF_S
        if pod.is_unwanted:
            return
        for rule in self.spec["podFailurePolicy"]["rules"]:
            on = rule.get("onExitCodes")
            hits = status in on["values"] if on else pod.is_disrupted
            if hits and rule["action"] == "Ignore":
                return
            if hits and rule["action"] == "FailJob":
                self.fail(f"{pod.name} ended with status {status}")
                return
        self.failures[index] = self.failures.get(index, 0) + 1
        most, each = self.spec.get("backoffLimit"), self.spec.get("backoffLimitPerIndex")
        if (most is not None and sum(self.failures.values()) > most) or (each is not None and self.failures[index] > each):
            self.fail("pods have failed too often")

    def fail(self, why):
        self.failed = why
        for pod in self.pods.values():
            pod.is_unwanted = True
            pod.end()

    def is_over(self):
        return (self.failed or self.succeeded >= set(range(self.completions))) and not self.pods

    # ---- For tests ----

    def wait(self, what, condition, patience_s=lab.PATIENCE_S):
        until = time.monotonic() + patience_s
        while True:
            self.tend()
            if condition():
                return
            if time.monotonic() > until:
                raise lab.Failure(f"waited {patience_s} s in vain until {what}")
            if self.failed and not self.pods:
                raise lab.Failure(f"the Job has failed before {what}: {self.failed}")
            time.sleep(0.02)

    def finish(self, patience_s=lab.PATIENCE_S):
        """All indexes succeed."""
        self.wait("the Job was done", lambda: self.is_over(), patience_s)
        if self.failed:
            raise lab.Failure(f"the Job has failed: {self.failed}")

    def step(self, pod="*"):
        """The last step that some pod has logged, or this one; -1 before the first."""
        last = -1
        for path in glob.glob(f"{self.cluster.runs}/*/{pod}/**/member-*.jsonl", recursive=True):
            for line in lab.lines_of(path):
                if found := re.match(r'\{"step":\{"step":(\d+)', line):
                    last = max(last, int(found[1]))
        return last

    def reach(self, step, patience_s=lab.PATIENCE_S):
        self.wait(f"step {step} was done", lambda: self.step() >= step, patience_s)

    def kill_all(self):
        for pod in self.pods.values():
            pod.process.kill()
            pod.process.wait()

    def tail(self):
        """What all pods said last, for whoever looks for a mistake."""
        every = [(pod, status) for pod, status in self.past] + [(pod, "running") for pod in self.pods.values()]
        return "\n".join(f"{pod.name} ({pod.address}, {status}): {pod.said()[-600:]}" for pod, status in every)
