"""The conformance of what lives in this process: MemoryBroker, and publishers to handlers."""

from __future__ import annotations

import pytest

from outrider.brokers.event_bus import BrokerEventBus
from outrider.brokers.in_process import InProcessPublisher
from outrider.brokers.memory import InMemoryEventBus
from outrider.testing.conformance import PublisherSuite, SinkHarness, SourceHarness, SourceSuite
from outrider.testing.memory_broker import MemoryPublisher
from tests.support.conformance.memory_harness import HandlerSink, MemoryGroup, MemorySink


class TestMemoryPublisher(PublisherSuite):
    @pytest.fixture
    def sink(self) -> SinkHarness:
        return MemorySink()


class TestBrokerEventBus(PublisherSuite):
    @pytest.fixture
    def sink(self) -> SinkHarness:
        return MemorySink(lambda broker: BrokerEventBus(MemoryPublisher(broker), broker.source()))


class TestMemorySource(SourceSuite):
    @pytest.fixture
    def source(self) -> SourceHarness:
        return MemoryGroup()


class TestInProcessPublisher(PublisherSuite):
    @pytest.fixture
    def sink(self) -> SinkHarness:
        return HandlerSink(InProcessPublisher)


class TestInMemoryEventBus(PublisherSuite):
    # It refuses whatever a handler fails with, as it runs in tests and single processes only.
    test_an_outage_is_neither_accepted_nor_refused = None
    test_the_same_publisher_works_again_after_an_outage = None
    test_a_server_killed_in_mid_batch_breaks_no_order = None

    @pytest.fixture
    def sink(self) -> SinkHarness:
        return HandlerSink(InMemoryEventBus)
