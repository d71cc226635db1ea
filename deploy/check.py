"""Checks the manifests of deploy/kubernetes, and what is sent to build the images: `deploy/check` runs it."""

import copy
import pathlib
import sys

import jsonschema
import kubernetes_validate
import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "deploy/kubernetes"
OLDEST = (1, 29)  # before it, a Job's rules for failures and for replacements were not what they are

# What the MPI operator's API has at the top, by its own definition of v2beta1 (release 0.8.0). Templates of pods are Kubernetes' own, and are
# checked as such.
TEXT, NUMBER = {"type": "string"}, {"type": "integer", "minimum": 0}


def record(required, **fields):
    return {"type": "object", "additionalProperties": False, "required": required, "properties": fields}


REPLICA = record(
    ["replicas", "template"],
    replicas={"type": "integer", "minimum": 1},
    restartPolicy={"enum": ["Never", "OnFailure"]},
    template={"type": "object"},
)
MPI_JOB = record(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "kubeflow.org/v2beta1"},
    kind={"const": "MPIJob"},
    metadata={"type": "object"},
    spec=record(
        ["mpiReplicaSpecs"],
        launcherCreationPolicy={"enum": ["AtStartup", "WaitForWorkersReady"]},
        mpiImplementation={"enum": ["OpenMPI", "Intel", "MPICH"]},
        mpiReplicaSpecs=record(["Launcher", "Worker"], Launcher=REPLICA, Worker=REPLICA),
        runLauncherAsWorker={"type": "boolean"},
        runPolicy=record(
            [],
            activeDeadlineSeconds=NUMBER,
            backoffLimit=NUMBER,
            cleanPodPolicy={"enum": ["None", "Running", "All"]},
            managedBy=TEXT,
            schedulingPolicy={"type": "object"},
            suspend={"type": "boolean"},
            ttlSecondsAfterFinished=NUMBER,
        ),
        slotsPerWorker={"type": "integer", "minimum": 1},
        sshAuthMountPath=TEXT,
    ),
)


def number(version):
    return tuple(map(int, version.split(".")[:2]))


VERSIONS = [version for version in kubernetes_validate.utils.all_versions() if number(version) >= OLDEST]
VERSIONS = list(dict.fromkeys(".".join(version.split(".")[:2]) for version in VERSIONS))


class Wrong(Exception):
    """What a file has wrong."""


def check(manifest, version):
    """Checks one manifest against one version."""
    try:
        if manifest["kind"] != "MPIJob":
            kubernetes_validate.validate(manifest, version, strict=True)
            return
        jsonschema.Draft202012Validator(MPI_JOB).validate(manifest)
        for replica in manifest["spec"]["mpiReplicaSpecs"].values():
            pods = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pods"}, "template": replica["template"]}
            kubernetes_validate.validate(pods, version, strict=True)
    except jsonschema.ValidationError as error:
        raise Wrong(f"{'.'.join(map(str, error.absolute_path))}: {error.message}") from None


def templates(manifest):
    """Those of the pods that a manifest makes."""
    if manifest["kind"] == "MPIJob":
        return [replica["template"] for replica in manifest["spec"]["mpiReplicaSpecs"].values()]
    return [manifest["spec"]["template"]] if manifest["kind"] == "Job" else []


def name_of(labels):
    return labels.get("app.kubernetes.io/name")


def check_pods(template, guarded):
    """That pods may do no more than they must."""
    pods = template["spec"]
    if name_of(template.get("metadata", {}).get("labels", {})) not in guarded:
        raise Wrong("no network policy selects the pods")
    if pods.get("automountServiceAccountToken") is not False:
        raise Wrong("pods get the token of a service account")
    if pods.get("securityContext", {}).get("seccompProfile") != {"type": "RuntimeDefault"}:
        raise Wrong("pods have no seccomp profile")
    if not all(container.get("securityContext", {}).get("readOnlyRootFilesystem") for container in pods["containers"]):
        raise Wrong("pods can write to their root")


def check_context():
    """What is sent to build the images: what cargo needs, and neither what it has built nor the history."""
    path = ROOT / ".dockerignore"
    if not path.exists():
        raise Wrong("it is missing: all that lies in the checkout would be sent")
    rules = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    through = [pathlib.Path(rule[1:]) for rule in rules if rule.startswith("!")]
    if rules[:1] != ["*"] or any(each.parts[0] in ("target", ".git", "*", "**") for each in through):
        raise Wrong("it lets target or .git through")
    for each in through:
        if not (ROOT / each).exists():
            raise Wrong(f"{each} is not there")
    for link in filter(pathlib.Path.is_symlink, (ROOT / "crates").glob("*/*")):
        if not any(link.resolve().is_relative_to(ROOT / each) for each in through):
            raise Wrong(f"{link.relative_to(ROOT)} leads to what is not let through")


def check_meaning(manifest, guarded):
    """What a schema cannot know."""
    for template in templates(manifest):
        check_pods(template, guarded)
    if manifest["kind"] == "MPIJob":
        replicas = manifest["spec"]["mpiReplicaSpecs"]
        script = replicas["Launcher"]["template"]["spec"]["containers"][0]["args"][0]
        if f"-np {replicas['Worker']['replicas']} " not in script:
            raise Wrong("mpirun starts another number of processes than there are workers")
    if manifest["kind"] != "Job":
        return
    spec = manifest["spec"]
    pods = spec["template"]["spec"]
    script = pods["containers"][0]["args"][0]
    if spec["completions"] != spec["parallelism"]:
        raise Wrong("completions and parallelism differ: some pods would wait for others that wait for them")
    if f"--hosts {spec['completions']} " not in script and "--elastic" not in script:
        raise Wrong("--hosts is another number than completions")
    if pods["subdomain"] != manifest["metadata"]["name"]:
        raise Wrong("the address of pod 0 is not what the rendezvous says")


# Each must be refused; were they not, the checks above would mean nothing.
def misspell(manifest):
    manifest["spec"]["template"]["spec"]["terminationGracePeriodSecond"] = 60


def mistype(manifest):
    manifest["spec"]["completions"] = "three"


def misplace(manifest):
    manifest["spec"]["podReplacementPolicy"] = {"policy": "Failed"}


def disagree(manifest):
    manifest["spec"]["completions"] = 2


def expose(manifest):
    manifest["spec"]["template"]["metadata"]["labels"] = {"app.kubernetes.io/name": "another"}


def loosen(manifest):
    del manifest["spec"]["template"]["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"]


def main():
    wrong = 0
    files = {path: list(yaml.safe_load_all(path.read_text())) for path in sorted(FOLDER.glob("*.yaml"))}
    policies = [each for manifests in files.values() for each in manifests if each["kind"] == "NetworkPolicy"]
    guarded = {policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/name"] for policy in policies}
    for path, manifests in files.items():
        for manifest in manifests:
            try:
                for version in VERSIONS:
                    check(manifest, version)
                check_meaning(manifest, guarded)
                name = f"{manifest['kind']} {manifest['metadata']['name']}"
                print(f"{path.name}: {name}: valid, Kubernetes {VERSIONS[0]} to {VERSIONS[-1]} ({len(VERSIONS)} versions)")
            except Wrong as error:
                wrong += 1
                print(f"{path.name}: {manifest['kind']}: {error}")
    job = next(each for each in files[FOLDER / "static.yaml"] if each["kind"] == "Job")
    for spoil in (misspell, mistype, misplace, disagree, expose, loosen):
        spoilt = copy.deepcopy(job)
        spoil(spoilt)
        try:
            check(spoilt, VERSIONS[-1])
            check_meaning(spoilt, guarded)
            wrong += 1
            print(f"a manifest that was spoilt ({spoil.__name__}) was taken for valid")
        except Wrong:
            pass
    try:
        check_context()
        print(".dockerignore: lets through what cargo needs")
    except Wrong as error:
        wrong += 1
        print(f".dockerignore: {error}")
    if not files or wrong:
        sys.exit(f"{wrong} wrong")


if __name__ == "__main__":
    main()
