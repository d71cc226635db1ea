"""Waits for PyTorch in a process that `paceline run` started, then runs the `sitecustomize` that this one hides.

Python imports this file at its start, because its folder is first on PYTHONPATH. It must cost next to nothing: most processes never
import PyTorch.
"""

import os
import sys


class Waiter:
    """Finds a module as the other finders do, and tells when its code has run."""

    waiting = {}

    @classmethod
    def wait(cls, name, tell):
        if name in sys.modules:
            tell(sys.modules[name])
            return
        cls.waiting.setdefault(name, []).append(tell)
        if cls not in sys.meta_path:
            sys.meta_path.insert(0, cls)

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name not in cls.waiting:
            return None
        for finder in sys.meta_path:
            if finder is cls or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                break
        else:
            return None
        if hasattr(spec.loader, "exec_module"):
            spec.loader = Loader(spec.loader, name)  # which may only be looked at, or be used later
        return spec

    @classmethod
    def tell(cls, name, module):
        tell = cls.waiting.pop(name, [])
        if not cls.waiting and cls in sys.meta_path:
            sys.meta_path.remove(cls)
        for each in tell:
            try:
                each(module)
            except Exception as error:
                warn(error)


class Loader:
    """A module's own loader, and a word when it is done."""

    def __init__(self, own, name):
        self.own, self.name = own, name

    def __getattr__(self, name):
        return getattr(self.own, name)

    def create_module(self, spec):
        return self.own.create_module(spec)

    def exec_module(self, module):
        spec = module.__spec__
        # For whoever looks at the module later, as if nobody had been here.
        if spec is not None:
            spec.loader = self.own
        module.__loader__ = self.own
        self.own.exec_module(module)
        Waiter.tell(self.name, module)


def warn(error):
    print(f"paceline: this process is not followed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


def follow(torch):
    from paceline import follow

    follow.start(torch)


def run_hidden():
    """Runs the `sitecustomize` that Python would have found without this one."""
    here = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    for finder in sys.meta_path:
        found = getattr(finder, "find_spec", None)
        spec = found and finder is not Waiter and found("sitecustomize", path)
        if spec is not None and spec is not False and spec.loader is not None:
            break
    else:
        return
    module = type(sys)("sitecustomize")
    module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, spec.origin
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    if os.environ.get("PACELINE_RUN"):
        try:
            Waiter.wait("torch", follow)
        except Exception as error:
            warn(error)
    run_hidden()
