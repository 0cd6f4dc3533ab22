"""When refused events are tried again, and how pauses grow."""

from __future__ import annotations

from datetime import timedelta
from itertools import accumulate, count, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider import ConfigurationError, ExponentialRetry, RelayConfig, SteppedRetry
from outrider.relay.backoff import OutageBackoff
from outrider.relay.retry import RetryPolicy

NOW, HALF_MINUTE, FIVE_MINUTES = timedelta(0), timedelta(seconds=30), timedelta(minutes=5)


def test_stepped_policy_is_that_of_the_messaging_service() -> None:
    poll = timedelta(seconds=5)
    config = RelayConfig(poll_interval=poll)

    waits = [config.wait_after(attempt, None) for attempt in range(1, 12)]

    at_once = [NOW, poll, poll]
    assert waits == [*at_once, *[HALF_MINUTE] * 3, *[FIVE_MINUTES] * 3, None, None]


def test_hiccup_of_two_seconds_leaves_most_attempts_unused() -> None:
    config = RelayConfig()
    waits = (config.wait_after(attempt, None) or NOW for attempt in count(1))

    tried_at = list(takewhile(lambda at: at <= timedelta(seconds=2), accumulate(waits)))

    assert len(tried_at) == 1, "one retry at once; the next comes with the poll"


@pytest.mark.parametrize("policy", [SteppedRetry(), ExponentialRetry(jitter=0)])
def test_limit_of_attempts_is_honoured_in_both_directions_and_the_last_wait_repeats(
    policy: RetryPolicy,
) -> None:
    config = RelayConfig(retry=policy, max_retries=25)

    assert config.wait_after(24, None) == config.wait_after(20, None) == FIVE_MINUTES
    assert config.wait_after(25, None) is None
    assert RelayConfig(retry=policy, max_retries=2).wait_after(2, None) is None


def test_limit_of_the_event_wins_over_that_of_the_relay() -> None:
    config = RelayConfig(max_retries=5)

    assert config.wait_after(5, 12) is not None
    assert config.wait_after(3, 3) is None


def test_no_wait_of_a_policy_is_replaced_except_zero() -> None:
    short = timedelta(milliseconds=1)
    config = RelayConfig(retry=SteppedRetry(steps=((9, short),)))

    assert config.wait_after(3, None) == short


@given(attempt=st.integers(1, 200), jitter=st.floats(0, 1))
def test_exponential_waits_stay_between_their_bounds(attempt: int, jitter: float) -> None:
    policy = ExponentialRetry(jitter=jitter)

    wait = policy.delay_after(attempt)

    full = min(policy.cap, timedelta(seconds=2 ** min(attempt - 1, 30)))
    assert full * (1 - jitter) - timedelta(microseconds=1) <= wait <= full


def test_impossible_policies_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="jitter"):
        ExponentialRetry(jitter=1.5)
    with pytest.raises(ConfigurationError, match="at least one step"):
        SteppedRetry(steps=())


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
