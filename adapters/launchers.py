"""What adapters/check does with other launchers than torchrun on one host: launchers.py PACELINE

Accelerate, mpirun where Open MPI is, and two nodes of torchrun, once with one folder for both and once with a folder each.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

from check import ADAPTERS, EXAMPLE, check, free_port, report, results, run

SCRIPT = os.path.join(ADAPTERS, "python", "tests", "scripts", "launched.py")


def check_ranks(name, study, steps):
    cases = study["cases"]
    check(f"{name}: one case", len(cases) == 1, f"{len(cases)} cases")
    case = cases[0]
    seen = case["workers"], case["steps"], len(case["ranks"])
    check(f"{name}: two workers, {steps} steps", seen == (2, steps, 2) and case["status"] == "done", (*seen, case["reason"]))
    check(f"{name}: their exchanges are compared", case["comm_wait_split_s"], case["comm_wait_split_s"])


def check_accelerate(paceline, folder):
    # That there is no GPU does not matter to the launcher: --multi_gpu stands for torchrun's.
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
              "--main_process_port", str(free_port()), "--mixed_precision", "no", "--dynamo_backend", "no"]
    run(paceline, "run", "--json", "--out", folder, "--", *launch, SCRIPT, "accelerate")
    check_ranks("accelerate launch", report(paceline, folder), 20)


def check_mpirun(paceline, folder):
    if not shutil.which("mpirun"):
        print("skipped: there is no mpirun here", flush=True)
        return
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    launch = ["mpirun", "-np", "2", "--bind-to", "none", "--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
    run(paceline, "run", "--json", "--out", folder, "--", *launch, sys.executable, SCRIPT, "mpi")
    check_ranks("mpirun", report(paceline, folder), 20)


def check_nodes(paceline, folders):
    port = str(free_port())
    nodes = []
    for node, folder in enumerate(folders):
        launch = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1",
                  "--master-addr", "127.0.0.1", "--master-port", port, EXAMPLE, "--epochs", "1", "--steps-per-epoch", "20", "--batch", "8"]
        nodes.append(subprocess.Popen([paceline, "run", "--json", "--out", folder, "--", *launch],
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    said = [node.communicate(timeout=300) for node in nodes]
    if any(node.returncode for node in nodes):
        sys.exit(f"launchers: a node failed: {said}")
    return said


def main():
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    paceline = sys.argv[1]
    with tempfile.TemporaryDirectory() as scratch:
        place = lambda name: os.path.join(scratch, name)
        check_accelerate(paceline, place("accelerate"))
        check_mpirun(paceline, place("mpirun"))
        check_nodes(paceline, [place("shared")] * 2)
        with open(os.path.join(place("shared"), "report.json")) as file:
            check_ranks("two nodes, one folder", json.load(file), 20)
        told = check_nodes(paceline, [place("first"), place("second")])
        check("two nodes, two folders: each says what is missing", all("are missing" in errors for _, errors in told), told[0][1].strip())
        shutil.copytree(place("second"), place("first"), dirs_exist_ok=True)
        check_ranks("two nodes, folders put together", report(paceline, place("first")), 20)
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
