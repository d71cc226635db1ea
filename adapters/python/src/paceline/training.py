"""Following a part of a process, for callbacks: from where training begins to where it ends, into a study's folder."""

import os
import re
import sys
import time

from . import hooks
from .files import LAUNCHER, Lines, rank_file, warn
from .follow import Follower
from .machine import machine, place
from .recorder import guarded
from .study import enter_case, finish


class Training(Follower):
    """Follows until it is closed. Rank 0 then writes what was run, and when, beside the ranks' logs."""

    def __init__(self, torch, folder, model, batch, patience):
        super().__init__(torch, {"model": model, "batch": batch})
        self.study, self.patience, self.began = folder, patience, time.time()

    def claim(self):
        self.name = re.sub(r"[^\w.-]+", "_", f"{self.model()}-{self.world}").lstrip(".") or "case"
        self.folder = os.path.join(self.study, self.name)
        os.makedirs(self.folder, exist_ok=True)
        return Lines(os.path.join(self.folder, rank_file(self.rank)))

    def close(self):
        if self.closed or not self.opened or self.pid != os.getpid():
            return
        super().close()
        self.roots.release()
        if self.rank == 0:
            self.complete_study()

    @guarded
    def complete_study(self):
        case = self.header()["case"]
        enter_case(self.study, self.name, 1, case, machine(f"PyTorch {self.torch.__version__}"))
        launcher = Lines(os.path.join(self.folder, LAUNCHER))
        launcher.head({"case": case})
        launcher.close()
        failed = "an exception ended the training" if self.failed else None
        finish(self.folder, self.began, 0 if failed else self.patience, failed)


def begin(folder, model, batch, patience):
    """Begins to follow this process. Returns nothing if `paceline run` does already."""
    if os.environ.get("PACELINE_RUN"):
        return None
    try:
        torch = sys.modules["torch"]
        hooks.install(torch)
        training = Training(torch, folder, model, batch, patience)
        hooks.listen(training)
        return training
    except Exception as error:
        warn(f"rank {place()[0]} goes on without a log: {type(error).__name__}: {error}")
        return None
