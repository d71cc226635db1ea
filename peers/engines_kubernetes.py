"""The part of `peers/engines` about Kubernetes: its manifests, and pods that a stand-in for the Job controller starts, ends and replaces."""

import json
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def install(bench):
    """What checks manifests, with pip into peers/.venv-kubernetes."""
    done = subprocess.run([ROOT / "deploy/check", "--install"], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"what checks manifests cannot be installed: {done.stderr[-600:]}")


def play(bench):
    checked = subprocess.run([ROOT / "deploy/check"], capture_output=True, text=True)
    lines = checked.stdout.splitlines()
    bench.check("manifests are valid", checked.returncode == 0, "; ".join([*lines, checked.stderr.strip()][-3:]))
    possible = subprocess.run([ROOT / "hosts/inside", "--probe"], capture_output=True, text=True)
    if possible.returncode:
        bench.check("pods can be made of namespaces", False, possible.stderr.strip())
        return
    folder = pathlib.Path(bench.scratch) / "kubernetes"
    folder.mkdir()
    # A copy of its own: whoever runs it belongs to this test.
    program = folder / "paceline"
    shutil.copy2(bench.program, program)
    python = ROOT / "peers/.venv-kubernetes/bin/python"
    words = [ROOT / "hosts/inside", python, ROOT / "hosts/kubernetes.py", program, folder]
    subprocess.run([*words, *(["--quick"] if bench.quick else [])])
    try:
        results = json.loads((folder / "results.json").read_text())
    except OSError as error:
        bench.check("pods were played", False, str(error))
        return
    for result in results:
        bench.check(f"{result['engine']}: {result['fault']}", result["reason"] is None, result["reason"] or result["outcome"])
        bench.row(
            f"Kubernetes, {result['engine']}",
            result["hosts"],
            result["fault"],
            result["outcome"] if result["reason"] is None else "FAILED",
            result["seconds"],
            result["same"],
        )
