"""Load or compute: the estimate of both, learned while the engine runs. Pure.

A load is worth it when it makes its step longer by less time than computing its tokens takes. Both
rates are moving averages of what was seen. A step costs something whatever it computes, and the
step with a load costs it, too: it is learned from small steps, and is not a price of tokens.

What a load costs is more than its reads, where they are fast (hooks per layer, copies, cores that
the model wants), and less, where layers are computed meanwhile. So it is told from how long whole
steps take. A refused load teaches nothing about loads, so every PROBE_EVERYth refusal in a row is
let through: a bad measurement does not close the gate for good.

Not thread-safe: the scheduler's alone.
"""

from dataclasses import dataclass

PROBE_EVERY = 16
NEW_SHARE = 0.2  # of a new measurement in the moving average
STEP_TOKENS_MIN = 64  # a smaller step is mostly overhead: it tells that, and little about prefill


@dataclass
class Rate:
    """Units per second; None until it was given or learned."""

    value: float | None = None

    def learn(self, units: float, seconds: float) -> None:
        if units <= 0 or seconds <= 0:
            return
        seen = units / seconds
        old = seen if self.value is None else self.value
        self.value = old + NEW_SHARE * (seen - old)


class Gate:
    """bytes_per_s, tokens_per_s: where the estimates start, None for "not known"."""

    def __init__(
        self,
        *,
        on: bool = True,
        bytes_per_s: float | None = None,
        tokens_per_s: float | None = None,
        overhead_s: float = 0.0,
    ) -> None:
        self.on = on
        self.load = Rate(bytes_per_s)
        self.compute = Rate(tokens_per_s)
        self.overhead_s = overhead_s
        self._small_steps = Rate()
        self._refused_in_a_row = 0

    def refuses(self, tokens: int, nbytes: int) -> bool:
        """Whether computing `tokens` is cheaper than loading their `nbytes`.

        False while either rate is unknown.
        """
        if not self.on or self.load.value is None or self.compute.value is None:
            return False
        if self.load_s(nbytes) <= self.compute_s(tokens):
            self._refused_in_a_row = 0
            return False
        self._refused_in_a_row += 1
        return self._refused_in_a_row % PROBE_EVERY != 0

    def load_s(self, nbytes: int) -> float:
        assert self.load.value is not None
        return self.overhead_s + nbytes / self.load.value

    def compute_s(self, tokens: int) -> float:
        assert self.compute.value is not None
        return tokens / self.compute.value

    def saw_loading_step(self, tokens: int, nbytes: int, seconds: float, load_s: float) -> None:
        """A step computed `tokens` with loads of `nbytes`, which took `load_s` from their call to
        their last byte. At least half of that is taken for their price: steps vary."""
        if self._small_steps.value is None or self.compute.value is None:
            self.saw_load(nbytes, load_s)
        else:
            without_s = 1 / self._small_steps.value + self.compute_s(tokens)
            self.saw_load(nbytes, max(seconds - without_s, load_s / 2))

    def saw_load(self, nbytes: int, seconds: float) -> None:
        """A load of `nbytes` cost `seconds` in all; the overhead is not the disk's."""
        self.load.learn(nbytes, max(seconds - self.overhead_s, seconds / 10))

    def saw_step(self, tokens: int, seconds: float) -> None:
        """A step without loads computed `tokens`."""
        if tokens < STEP_TOKENS_MIN:
            self._small_steps.learn(1, seconds)
            return
        a_second = self._small_steps.value
        fixed_s = 1 / a_second if a_second else 0.0
        self.compute.learn(tokens, max(seconds - fixed_s, seconds / 10))
