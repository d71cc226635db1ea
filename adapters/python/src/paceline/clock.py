"""Clocks: a stamp is taken at once, its moment may be known only later."""

import functools
import time

now = time.monotonic_ns  # CLOCK_MONOTONIC, which all processes of a host share
CAUGHT_UP = 30_000  # ns: a device that reaches a point so soon after the host asked had nothing else left to do


class HostClock:
    stamp = staticmethod(now)
    lags = None

    def is_known(self, stamp):
        return True

    def settle(self, stamp):
        pass

    def moments(self, stamps):
        return stamps

    def numbers(self, losses):
        return losses


class CudaClock:
    """Times at which the device's current stream reaches a point, on the host's clock. Nothing waits for the device: events
    are read after the device has passed them, and reused."""

    def __init__(self, torch):
        self.torch, self.free, self.lags = torch, [], None
        self.event = functools.partial(torch.cuda.Event, enable_timing=True)
        self.side = torch.cuda.Stream()
        # On an empty stream the device is there at once, whatever else it still has to do.
        with torch.cuda.stream(self.side):
            self.anchor, self.anchored = self.stamp()
        self.anchor.synchronize()

    def stamp(self):
        event = self.free.pop() if self.free else self.event()
        asked = now()
        event.record()
        return event, asked

    def is_known(self, stamp):
        return stamp[0].query()

    def settle(self, stamp):
        """Waits until the device has reached this point, so that earlier events can be read."""
        stamp[0].synchronize()

    def elapsed(self, event):
        try:
            return self.anchor.elapsed_time(event)
        except RuntimeError:  # on a stream of its own, and a moment behind the step's end
            event.synchronize()
            return self.anchor.elapsed_time(event)

    def moments(self, stamps):
        """The last of the stamps becomes the anchor: milliseconds since it are exact as a 32-bit float."""
        stamps[-1][0].synchronize()  # returns at once for a step that is known to have ended
        anchored = self.anchored
        raw = [anchored + round(self.elapsed(event) * 1e6) for event, _ in stamps]
        # The two clocks drift, but the device is never ahead of the call, nor behind the answer.
        drift = max(0, max(asked - moment for (_, asked), moment in zip(stamps, raw)))
        drift -= max(0, max(raw) + drift - now())
        if drift:
            raw = [moment + drift for moment in raw]
        # How far the device was behind the host.
        self.lags = [moment - asked for (_, asked), moment in zip(stamps, raw)]
        last = stamps[-1][0]
        # A stamp may stand for the end of one mark and the begin of the next: each event is free once.
        self.free.extend({id(event): event for event, _ in stamps if event is not last}.values())
        self.anchor, self.anchored = last, raw[-1]
        return raw

    def numbers(self, losses):
        """Losses that the device has computed, read together without interrupting its work."""
        if not losses:
            return losses
        with self.torch.cuda.stream(self.side):
            return self.torch.stack([self.torch.as_tensor(loss, device="cuda").float() for loss in losses]).tolist()
