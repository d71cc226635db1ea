"""Checks the Paceline that is installed beside this interpreter; adapters/wheel runs it where there is nothing else.

    python installed.py paceline-0.1.0-py3-none-manylinux_2_28_x86_64.whl       # the wheel that it was installed from
"""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile


def paceline(*arguments, status=0):
    done = subprocess.run(["paceline", *arguments], capture_output=True, text=True)
    if done.returncode != status:
        sys.exit(f"paceline {' '.join(arguments)}: status {done.returncode}, not {status}\n{done.stdout}{done.stderr}")
    return done


def expect(found, expected, what):
    if found != expected:
        sys.exit(f"{what}: {found!r}, not {expected!r}")


def check_environment():
    for program in ("cargo", "rustc", "cc"):
        expect(shutil.which(program), None, f"{program} on PATH, where only the wheel should be")
    expect(importlib.util.find_spec("torch"), None, "PyTorch, which the wheel must not need")


def check_package(version):
    import paceline as package

    expect(package.__version__, version, "paceline.__version__")
    expect(importlib.metadata.version("paceline"), version, "the version of the wheel's metadata")
    expect(importlib.metadata.requires("paceline"), None, "what the wheel depends on")
    licences = {file.name for file in importlib.metadata.files("paceline") if file.name.startswith("LICENSE")}
    expect(licences, {"LICENSE-MIT", "LICENSE-APACHE", "LICENSE-third-party"}, "the licences in the wheel")
    folder = os.path.dirname(package.__file__)
    modules = sorted(name for name in os.listdir(folder) if name.endswith(".py"))
    for name in modules:
        # Modules for other libraries cannot be imported here, but this Python must understand them.
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            compile(file.read(), name, "exec")
    return modules


def check_program(version):
    expect(os.path.dirname(shutil.which("paceline")), os.path.dirname(sys.executable), "the folder of paceline")
    expect(paceline("--version").stdout, f"paceline {version}\n", "paceline --version")
    if "resnet50" not in paceline("models").stdout:
        sys.exit("paceline models does not name resnet50")
    # Processes, shared memory, pinning and clocks, with this system's C library.
    study = ["--steps", "3", "--batch", "4", "--threads", "1", "--out", "study"]
    paceline("bench", "mobilenet_v2", "--workers", "1,2", *study)
    if not os.path.exists("study/report.html"):
        sys.exit("paceline bench wrote no study/report.html")


def check_run():
    """A command is run as if `paceline run` were not there, whatever becomes of measuring."""
    script = "import sys; print('out'); sys.exit(7)"
    done = paceline("run", "--out", "followed", "--", "python", "-c", script, status=7)
    expect(done.stdout, "out\n", "standard output of paceline run")


def main():
    version = sys.argv[1].split("-")[1]
    check_environment()
    modules = check_package(version)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        check_program(version)
        check_run()
        os.chdir("/")
    library = " ".join(platform.libc_ver())
    print(f"works with Python {platform.python_version()}, {library}: paceline {version} and {len(modules)} modules")


main()
