"""Which sinks an event goes to, and which handlers it meets."""

from __future__ import annotations

import pytest

from outrider import ConfigurationError, EventEnvelope
from outrider.consumer.subscriptions import Subscriptions
from outrider.events.patterns import matches
from outrider.recording.routing import Routes


def test_without_rules_everything_goes_to_the_default_sink() -> None:
    assert Routes().of("order.placed") == ("default",)


def test_event_goes_to_the_sinks_of_every_rule_that_matches_to_each_once() -> None:
    routes = Routes({"order.*": ["kafka", "stream"], "order.placed": "kafka", "*": "audit"})

    assert routes.of("order.placed") == ("kafka", "stream", "audit")
    assert routes.of("payment.made") == ("audit",)
    assert routes.sinks == ["kafka", "stream", "audit"]


def test_event_that_no_rule_speaks_of_is_refused_and_not_lost_quietly() -> None:
    routes = Routes({"order.*": "kafka"})

    with pytest.raises(ConfigurationError, match="payment.made: no route"):
        routes.of("payment.made")


def test_rule_without_sinks_sends_nothing() -> None:
    assert Routes({"internal.*": (), "order.*": "kafka"}).of("internal.tick") == ()


@pytest.mark.parametrize("pattern", ["", "a*b", "*.placed", "**"])
def test_bad_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigurationError, match="no pattern"):
        Routes({pattern: "kafka"})


@pytest.mark.parametrize("sink", ["", "a\nb", "x" * 64])
def test_bad_sink_is_refused(sink: str) -> None:
    with pytest.raises(ConfigurationError, match="no name for a sink"):
        Routes({"*": sink})


@pytest.mark.parametrize(
    ("pattern", "event_type", "fits"),
    [
        ("*", "order.placed", True),
        ("order.*", "order.placed", True),
        ("order.*", "orders.placed", False),
        ("order.placed", "order.placed", True),
        ("order.placed", "order.placed.twice", False),
    ],
)
def test_star_stands_for_any_ending(pattern: str, event_type: str, fits: bool) -> None:
    assert matches(pattern, event_type) is fits


def test_handler_with_several_matching_patterns_is_found_once_in_order() -> None:
    class Handler:
        def __init__(self, name: str) -> None:
            self.name = name

        async def handle(self, envelope: EventEnvelope, /) -> None: ...

    one, two, late = Handler("one"), Handler("two"), Handler("late")
    subscriptions = Subscriptions([("*", one), ("order.*", two), ("order.placed", one)])

    found = subscriptions.of("order.placed")
    subscriptions.subscribe("order.placed", late)

    assert found == (one, two)
    assert subscriptions.of("order.placed") == (one, two, late)
