"""When refused events are tried again, and how pauses grow."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider import ConfigurationError, ExponentialRetry, RelayConfig, SteppedRetry
from outrider.relay.backoff import OutageBackoff

NOW, HALF_MINUTE, FIVE_MINUTES = timedelta(0), timedelta(seconds=30), timedelta(minutes=5)


def test_stepped_policy_is_that_of_the_messaging_service() -> None:
    waits = [SteppedRetry().delay_after(attempt) for attempt in range(1, 12)]

    assert waits == [NOW] * 3 + [HALF_MINUTE] * 3 + [FIVE_MINUTES] * 3 + [None, None]


@given(attempt=st.integers(1, 200), jitter=st.floats(0, 1))
def test_exponential_waits_stay_between_their_bounds(attempt: int, jitter: float) -> None:
    policy = ExponentialRetry(attempts=100, jitter=jitter)

    wait = policy.delay_after(attempt)

    if attempt >= 100:
        assert wait is None
    else:
        full = min(policy.cap, timedelta(seconds=2 ** min(attempt - 1, 30)))
        assert wait is not None
        assert full * (1 - jitter) - timedelta(microseconds=1) <= wait <= full


def test_impossible_policies_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="attempts >= 1"):
        ExponentialRetry(attempts=0)
    with pytest.raises(ConfigurationError, match="jitter"):
        ExponentialRetry(jitter=1.5)


def test_all_problems_of_a_relay_are_reported_together() -> None:
    with pytest.raises(ConfigurationError, match=r"batch_size.*lease.*loops"):
        RelayConfig(batch_size=0, loops=0, lease=NOW)


def test_pause_grows_to_its_cap_and_starts_anew() -> None:
    pause = OutageBackoff(first=0.1, cap=5.0)

    waits = [pause.next_delay().total_seconds() for _ in range(12)]

    assert 0.08 <= waits[0] <= 0.1
    assert max(waits) <= 5.0
    assert waits[-1] >= 4.0
    assert pause.reset()
    assert not pause.reset()
    assert pause.next_delay().total_seconds() <= 0.1
    assert pause.just_started
