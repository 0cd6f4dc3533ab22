"""Random input for as long as a budget lasts: a moment in a usual run, longer in `make fuzz`."""

from __future__ import annotations

import os
import random
import resource
import time
from collections.abc import Callable
from itertools import count
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.support.pages.hostile import SCRIPTS, VALUES

SECONDS: Final = float(os.environ.get("OUTRIDER_FUZZ_SECONDS") or 0.8)
SEED: Final = int(os.environ.get("OUTRIDER_SEED") or random.SystemRandom().randrange(2**32))
_MAX_MEMORY_KIB: Final = 256 * 1024
_ROUND: Final = settings(
    max_examples=50,
    deadline=None,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)

hostile_text: Final = (
    st.text(max_size=60)
    | st.text(st.characters(categories=["Cc", "Cf", "Cs", "Co", "Zl", "Zp"]), max_size=9)
    | st.sampled_from([*SCRIPTS, *VALUES, "a" * 5_000, "9" * 5_000, "-1", "1e999", "NaN", "\0"])
)


def fuzz(check: Callable[..., object], *inputs: st.SearchStrategy[Any]) -> None:
    """Call `check` with random input; it must not raise or use too much memory."""
    examples, begun, before = 0, time.monotonic(), _peak()

    def one(drawn: tuple[Any, ...]) -> None:
        nonlocal examples
        examples += 1
        check(*drawn)

    for number in count(SEED):
        print(f"OUTRIDER_SEED={number}")
        seed(number)(_ROUND(given(st.tuples(*inputs))(one)))()
        if (took := time.monotonic() - begun) >= SECONDS:
            break
    name = getattr(check, "__name__", "check")
    print(f"{name}: {examples} examples in {took:.1f} s, {examples / took:,.0f} a second")
    assert _peak() - before < _MAX_MEMORY_KIB


def _peak() -> int:
    """The peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
