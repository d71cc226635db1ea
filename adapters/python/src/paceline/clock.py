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

    def moments(self, stamps, last):
        return stamps

    def numbers(self, losses):
        return losses


class CudaClock:
    """Times at which the device's current stream reaches a point, on the host's clock. Nothing waits for the device: events
    are read after the device has passed them, and reused."""

    def __init__(self, torch):
        self.torch, self.free, self.lags = torch, [], None
        cuda = torch.cuda
        self.event = functools.partial(cuda.Event, enable_timing=True)
        # An event finds out about the current stream by itself, and takes five times as long for it as for all else.
        self.put = getattr(cuda.Event.__base__, "record", None)
        self.current = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
        self.measure = getattr(cuda.Event.__base__, "elapsed_time", None) or cuda.Event.elapsed_time
        self.stream = self.raw = self.device = None
        if self.put is not None and self.current is not None:
            self.stream = cuda.current_stream()
            self.raw, self.device = self.stream.cuda_stream, self.stream.device_index
        self.side = cuda.Stream()
        # On an empty stream the device is there at once, whatever else it still has to do.
        with cuda.stream(self.side):
            self.anchor, self.anchored = self.stamp()
        self.anchor.synchronize()

    def stamp(self):
        event = self.free.pop() if self.free else self.event()
        asked = now()
        if self.raw is not None and self.current(self.device) == self.raw:
            self.put(event, self.stream)
        else:
            event.record()
        return event, asked

    def is_known(self, stamp):
        return stamp[0].query()

    def settle(self, stamp):
        """Waits until the device has reached this point, so that earlier events can be read."""
        stamp[0].synchronize()

    def elapsed(self, event):
        try:
            return self.measure(self.anchor, event)
        except RuntimeError:  # on a stream of its own, and a moment behind the step's end
            event.synchronize()
            return self.measure(self.anchor, event)

    def moments(self, stamps, last):
        """The one at place `last`, the latest of the stream that computes, becomes the anchor: milliseconds since it are exact as a
        32-bit float. A stamp may stand for the end of one mark and the begin of the next: each event is read once, and free once."""
        end = stamps[last][0]
        end.synchronize()  # returns at once for a step that is known to have ended
        events = {id(event): event for event, _ in stamps}
        anchored = self.anchored
        at = {key: anchored + round(self.elapsed(event) * 1e6) for key, event in events.items()}
        told = [at[id(event)] for event, _ in stamps]
        # How far the device was behind the host.
        lags = [moment - asked for moment, (_, asked) in zip(told, stamps)]
        # The two clocks drift, but the device is never ahead of the call, nor behind the answer.
        drift = max(0, -min(lags))
        drift -= max(0, max(told) + drift - now())
        if drift:
            told = [moment + drift for moment in told]
            lags = [lag + drift for lag in lags]
        self.lags = lags
        del events[id(end)]
        self.free.extend(events.values())
        self.anchor, self.anchored = end, told[last]
        return told

    def numbers(self, losses):
        """Losses that the device has computed, read together without interrupting its work."""
        if not losses:
            return losses
        with self.torch.cuda.stream(self.side):
            return self.torch.stack([self.torch.as_tensor(loss, device="cuda").float() for loss in losses]).tolist()
