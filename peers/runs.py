"""Trainings by Paceline, what they leave, and the pictures that they read. Needs no PyTorch."""

import contextlib
import json
import pathlib
import subprocess

from processes import tied

PACELINE = pathlib.Path(__file__).resolve().parent.parent / "target/release/paceline"

SIDE = 32
RECORD = 1 + 3 * SIDE * SIDE  # a label, then red, green and blue
TRAIN_FILES = [f"data_batch_{i}.bin" for i in range(1, 6)]
TEST_FILES = ["test_batch.bin"]


class Failure(Exception):
    """What the user is told, without a traceback."""


def read_file(folder, name, count=-1):
    try:
        with open(pathlib.Path(folder) / name, "rb") as file:
            return file.read(count)
    except OSError as error:
        raise Failure(f"{error}; fetch the data with `paceline data cifar10 {folder}`") from None


def write_small_cifar10(folder, small, records):
    """The first records of each file, as a data set of its own."""
    small = pathlib.Path(small)
    small.mkdir(parents=True)
    for name in TRAIN_FILES + TEST_FILES:
        (small / name).write_bytes(read_file(folder, name, records * RECORD))
    return small


def train(options, network, data, out, **settings):
    """One `paceline train`, which leaves its run in `out`."""
    command = train_command(options, network, data, out, **settings)
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=tied())
    if result.returncode != 0:
        raise Failure(f"{' '.join(command)} ended with status {result.returncode}:\n{result.stderr.strip()}")
    return Run(out)


def train_command(options, network, data, out, **settings):
    command = [str(options.paceline), "train", network, "--data", f"cifar10:{data}", "--workers", "1", "--out", str(out)]
    command += ["--threads", str(options.threads)]
    for name, value in settings.items():
        command += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return command


class Run:
    """The folder of a training on one worker."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    @property
    def weights(self):
        return self.folder / "weights.safetensors"

    def events(self, kind):
        """Contents of the run log's lines of one kind."""
        logs = list(self.folder.glob("*/rank-0.jsonl"))
        if len(logs) != 1:
            raise Failure(f"{self.folder} is not the folder of one training")
        for line in logs[0].read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # the last line of a run that was stopped
                event = json.loads(line)
                if kind in event:
                    yield event[kind]

    def samples(self):
        """The numbers of each step's samples (--log-samples)."""
        (log,) = self.folder.glob("*/samples-0.txt")
        steps = {}
        for line in log.read_text().splitlines():
            _, step, _, *indices = map(int, line.split())
            steps.setdefault(step, []).extend(indices)
        return [steps[step] for step in sorted(steps)]

    def network(self):
        """Name and image size, which the weights' file tells."""
        from safetensors import safe_open

        with safe_open(self.weights, "pt") as file:
            label = json.loads(file.metadata()["paceline"])
        return label["model"], tuple(label["input"])
