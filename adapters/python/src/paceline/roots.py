"""The modules whose calls are a training's forward: those that hold what is trained and are part of no other such module."""

import functools
import gc
import sys

from . import hooks


class Roots:
    """Hooks on the outermost modules. Hooks on all modules would cost too much, and would break compiled graphs."""

    def __init__(self, torch):
        self.torch, self.is_compiling = torch, hooks.compiling(torch)
        self.modules, self.handles, self.outermost = [], [], []

    def find(self, trained=None):
        """Looks for them among all objects; `trained` is the parameters of the optimizers, if they are known."""
        kind = self.torch.nn.Module
        # By type: some objects import half a library when they are asked for their class.
        modules = [each for each in gc.get_objects() if issubclass(type(each), kind) and "_modules" in each.__dict__]
        trained = None if trained is None else {id(parameter) for parameter in trained}

        def holds(module):
            own = [parameter for parameter in module._parameters.values() if parameter is not None]
            return any(parameter.requires_grad if trained is None else id(parameter) in trained for parameter in own)

        within, parents = set(), {}
        for module in modules:
            for child in module._modules.values():
                if child is not None:
                    parents.setdefault(id(child), []).append(module)
        todo = [module for module in modules if holds(module)]
        holders = {}
        while todo:
            module = todo.pop()
            if id(module) not in holders:
                holders[id(module)] = module
                todo += parents.get(id(module), [])
        for module in holders.values():
            within.update(id(child) for child in module._modules.values())
        found = [module for module in holders.values() if id(module) not in within]
        if {id(each) for each in found} != {id(each) for each in self.modules}:
            self.attach(found)
        self.outermost = found

    def attach(self, modules):
        self.release()
        self.modules = list(modules)
        for module in modules:
            self.hook(module)

    def descend(self):
        """Nobody calls these modules themselves, but what is in them: as Lightning calls methods of its module."""
        inner = [child for module in self.modules for child in module._modules.values() if child is not None]
        inner = [child for child in inner if any(True for _ in child.parameters())]
        if self.has_compiled():
            # They may be called within a compiled function, which a hook would make PyTorch compile once more.
            inner = [child for child in inner if "_orig_mod" in child._modules]
        if not inner:
            return False
        self.attach(inner)
        return True

    def has_compiled(self):
        dynamo = sys.modules.get("torch._dynamo.utils")
        return dynamo is not None and bool(dynamo.counters["frames"]["total"])

    def hook(self, module):
        begins, ended = hooks.Hook(self.begins), hooks.Hook(self.ended)
        if getattr(module, "_compiled_call_impl", None) is not None:
            # Compiled in place: a hook would be compiled too.
            call = module._compiled_call_impl

            @functools.wraps(call)
            def timed(*args, **kwargs):
                begins(module, args, kwargs)
                result = call(*args, **kwargs)
                ended(module, args, result)
                return result

            module._compiled_call_impl = timed

            def restore():
                if module.__dict__.get("_compiled_call_impl") is timed:
                    module._compiled_call_impl = call

            self.handles.append(restore)
            return
        first = module.register_forward_pre_hook(begins, prepend=True, with_kwargs=True)
        last = module.register_forward_hook(ended)
        self.handles += [first.remove, last.remove]

    def begins(self, module, args, kwargs):
        if self.is_compiling():
            return
        if hooks.listener is not None:
            hooks.listener.forward_begins(module, args, kwargs)

    def ended(self, module, args, result):
        if self.is_compiling():
            return
        if hooks.listener is not None:
            hooks.listener.forward_ended(module)

    def release(self):
        for remove in self.handles:
            remove()
        self.modules, self.handles = [], []


def unwrapped(module):
    """The user's own module within those that wrap it."""
    while True:
        inner = module._modules.get("_orig_mod") or (
            module._modules.get("module") if type(module).__module__.startswith(("torch.", "accelerate.")) else None)
        if inner is None:
            return module
        module = inner
