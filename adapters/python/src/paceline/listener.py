"""What hooks hear, as phases of the step that is under way."""

from .clock import CudaClock
from .recorder import Recorder, guarded


class Listener(Recorder):
    """Follows model, backward, optimizer and checkpoints; where steps begin and end is for others to say."""

    def __init__(self, torch):
        super().__init__()
        self.torch, self.loading = torch, False
        self.before_pause = []
        self.exchanging, self.under_way, self.resumed = 0, {}, None

    @property
    def on_device(self):
        return isinstance(self.clock, CudaClock)

    def is_alone(self):
        return self.torch is not None and self.torch.get_num_threads() == 1

    def computing_stream(self):
        return self.torch.cuda.current_stream() == self.stream

    stream = None  # that the marks are on

    # -- Loading: only a follower needs it

    def load_begins(self):
        pass

    def loaded(self, batch):
        pass

    def ran_out(self):
        pass

    # -- Computing

    @guarded
    def forward_begins(self, module, args, kwargs):
        if self.is_open() and not self.named:
            self.begin_forward()

    def begin_forward(self):
        self.forget_update()
        self.auto("forward")

    def forget_update(self):
        """An optimizer that calls a closure first, with forward and backward in it, has updated nothing yet."""
        if self.current == "update" and self.updating is not None and self.step.marks[-1][0] == "update":
            self.step.marks[-1] = (None, *self.step.marks[-1][1:])

    @guarded
    def forward_ended(self, module):
        # With gradients, forward goes on until backward begins: it holds the loss function.
        if self.is_open() and self.current == "forward" and not self.torch.is_grad_enabled():
            self.auto("update" if self.updating is not None else None)

    @guarded
    def backward_begins(self):
        self.begin_backward()

    def begin_backward(self):
        if self.is_open() and not self.pausing():
            self.in_backward = True
            self.forget_update()
            self.auto("backward")

    @guarded
    def backward_ended(self):
        if self.in_backward:
            self.in_backward = False
            self.mark(self.named[-1] if self.named else "update" if self.updating is not None else None)

    @guarded
    def update_begins(self, optimizer):
        if self.updating is None and self.is_open():
            self.updating = optimizer
            self.auto("update")

    @guarded
    def update_ended(self, optimizer):
        if self.updating is optimizer:
            self.updating = None
            self.auto(None)

    # -- Captured graphs

    def capture_begins(self, graph):
        self.capturing = graph

    def capture_ended(self):
        self.capturing = None

    @guarded
    def replay_begins(self, graph):
        if self.is_open() and self.current is None:
            self.auto("compute")

    @guarded
    def replay_ended(self, graph):
        if self.current == "compute":
            self.auto(None)

    # -- Pauses

    @guarded
    def pause_begins(self, name):
        self.before_pause.append(self.current)
        if not self.named:
            self.enter(name)
        self.named.append(name)

    def enter(self, name):
        self.mark(name)

    @guarded
    def pause_ended(self, name):
        self.named.pop()
        before = self.before_pause.pop()
        if not self.named:
            self.leave(before)

    def leave(self, before):
        self.mark(before)

    # -- Exchanges outside of DDP

    @guarded
    def collective_begins(self, size, goes_on):
        phase = "comm_wait"
        if self.on_device:
            # The stream that asks is blocked for its own time alone; only if it is the one that computes is that a wait.
            phase = "comm_wait" if not goes_on and self.computing_stream() else None
            if phase is None:
                self.note("how long computation waited for collectives on other streams is not told", ["comm_wait"])
        elif goes_on:
            phase = "comm_cpu"
        self.resumed = self.current
        return self.begin_exchange(size, phase)

    @guarded
    def collective_called(self, exchange):
        """The call has returned: the collective is done, or goes on without the caller."""
        if exchange is not None:
            if exchange.phase == "comm_wait":
                self.end_exchange(exchange)
            self.hand_back(exchange, self.resumed)

    @guarded
    def collective_goes_on(self, exchange, work):
        if exchange is None:
            return
        if self.on_device:
            self.end_exchange(exchange)
            return
        if len(self.under_way) > 1000:
            self.under_way.clear()  # of a script that never waits
        self.under_way[id(work)] = exchange
        try:
            work.get_future().then(lambda _: self.end_exchange(exchange))
        except RuntimeError:
            pass  # a backend without futures: then it ends when it has been waited for

    @guarded
    def wait_begins(self, work):
        exchange = self.under_way.pop(id(work), None)
        if exchange is None or not self.is_open() or self.pausing():
            return None
        self.resumed = self.current
        self.mark("comm_wait")
        return exchange

    @guarded
    def wait_ended(self, exchange):
        if exchange is not None:
            self.end_exchange(exchange)
            self.mark(self.named[-1] if self.named else self.resumed)
