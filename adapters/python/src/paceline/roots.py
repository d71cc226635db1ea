"""The modules whose calls are a training's forward: those that hold what is trained and are part of no other such module."""

import functools
import gc
import weakref

from . import hooks


class Roots:
    """Hooks on the outermost modules. Hooks on all modules would cost too much, and would break compiled graphs."""

    def __init__(self, torch):
        self.torch, self.is_compiling = torch, hooks.compiling(torch)
        self.handles = weakref.WeakKeyDictionary()  # how to take the hooks off again, by module
        self.held, self.names = [], []
        self.inside = False  # a call of one of them

    @property
    def modules(self):
        """Those that are followed now and still there: a follower must not keep a model alive."""
        return [module for module in (each() for each in self.held) if module is not None]

    def find(self, trained=None, early=False):
        """Looks for them among all objects; `trained` is the parameters of the optimizers, if they are known. It is `early` as long as
        nothing has been computed."""
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
        self.attach(found, early)
        self.names = sorted({type(unwrapped(module)).__name__ for module in found})

    def attach(self, modules, early=False):
        """Hooks these modules and no others. Once something may have been compiled, plain modules stay as they are: they may be part
        of a compiled function, which another number of hooks would make PyTorch compile again."""
        fixed = hooks.has_compiled and not early
        for module in list(self.handles):
            if not any(module is each for each in modules) and not (fixed and not is_compiled(module)):
                self.unhook(module)
        for module in modules:
            if module not in self.handles and not (fixed and not is_compiled(module)):
                self.handles[module] = self.hook(module)
        self.held = [weakref.ref(module) for module in modules]

    def descend(self):
        """Nobody calls these modules themselves, but what is in them: as Lightning calls methods of its module."""
        inner = [child for module in self.modules for child in module._modules.values() if child is not None]
        inner = [child for child in inner if any(True for _ in child.parameters())]
        if not inner:
            return False
        self.attach(inner)
        return True

    def hook(self, module):
        begins, ended = Begins(self), Ended(self)
        if getattr(module, "_compiled_call_impl", None) is not None:
            # Compiled in place: a hook would be compiled too.
            call, known = module._compiled_call_impl, weakref.ref(module)

            @functools.wraps(call)
            def timed(*args, **kwargs):
                begins(known(), args, kwargs)
                result = call(*args, **kwargs)
                ended(known(), args, result)
                return result

            module._compiled_call_impl = timed

            def restore():
                module = known()
                if module is not None and module.__dict__.get("_compiled_call_impl") is timed:
                    module._compiled_call_impl = call

            return [restore]
        handles = [module.register_forward_pre_hook(begins, prepend=True, with_kwargs=True), module.register_forward_hook(ended)]
        if isinstance(module, self.torch.nn.parallel.DistributedDataParallel) and not hooks.has_compiled:
            # Evaluations often call the model within the wrapper.
            inner = module.module
            handles.append(inner.register_forward_pre_hook(InnerBegins(self), prepend=True, with_kwargs=True))
            handles.append(inner.register_forward_hook(InnerEnded(self)))
        return [handle.remove for handle in handles]

    def unhook(self, module):
        for remove in self.handles.pop(module):
            remove()

    def release(self):
        for module in list(self.handles):
            self.unhook(module)
        self.held = []


class RootHook(hooks.Hook):
    def __init__(self, roots):
        super().__init__()
        self.roots, self.is_compiling = roots, roots.is_compiling


class Begins(RootHook):
    def __call__(self, module, args, kwargs):
        if not self.is_compiling():
            self.roots.inside = True
            if hooks.listener is not None:
                hooks.listener.forward_begins(module, args, kwargs)


class Ended(RootHook):
    def __call__(self, module, args, result):
        if not self.is_compiling():
            self.roots.inside = False
            if hooks.listener is not None:
                hooks.listener.forward_ended(module)


class InnerBegins(RootHook):
    def __call__(self, module, args, kwargs):
        if not self.is_compiling() and not self.roots.inside and hooks.listener is not None:
            hooks.listener.forward_begins(module, args, kwargs)


class InnerEnded(RootHook):
    def __call__(self, module, args, result):
        if not self.is_compiling() and not self.roots.inside and hooks.listener is not None:
            hooks.listener.forward_ended(module)


def is_compiled(module):
    """Whether it is compiled as a whole, so that hooks on it lie outside of what is compiled."""
    return "_orig_mod" in module._modules or getattr(module, "_compiled_call_impl", None) is not None


def unwrapped(module):
    """The user's own module within those that wrap it."""
    while True:
        inner = module._modules.get("_orig_mod") or (
            module._modules.get("module") if type(module).__module__.startswith(("torch.", "accelerate.")) else None)
        if inner is None:
            return module
        module = inner
