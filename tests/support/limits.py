"""How long a run is, which random numbers it uses, and how long a test waits at most."""

from __future__ import annotations

import os
import random
from typing import Final

FULL: Final = bool(os.environ.get("OUTRIDER_FULL"))
"""Whether fault tests run at full length, as `make faults` does."""

SEED: Final = int(os.environ.get("OUTRIDER_SEED") or random.SystemRandom().randrange(2**32))
"""Start of the random numbers; set OUTRIDER_SEED to repeat a run."""

MAX_WAIT_S: Final = 600.0 if FULL else 120.0
