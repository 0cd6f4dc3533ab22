"""One partition of Kafka that takes nothing, while the others do."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from outrider.brokers import ACCEPTED, Deferred, Outcome, PublishFailed, Unknown
from outrider.brokers.kafka import KafkaConfig, KafkaPublisher
from outrider.brokers.kafka.batch import Batch
from tests.support.brokers.events import event


class SilentPartition(KafkaPublisher):
    """Some events are acknowledged; aiokafka would repeat the others for ever."""

    def __init__(self, acknowledged: int) -> None:
        config = KafkaConfig(publish_timeout=timedelta(milliseconds=1))
        super().__init__("kafka://localhost", config=config)
        self._acknowledged = acknowledged

    async def _publish(self, batch: Batch) -> None:
        for index in range(self._acknowledged):
            batch.outcomes[index] = ACCEPTED
        await asyncio.Event().wait()


@pytest.mark.parametrize(("acknowledged", "kind"), [(1, Deferred), (0, Unknown)])
async def test_partition_that_does_not_answer_delays_its_own_events_only_if_others_did(
    acknowledged: int, kind: type[Outcome]
) -> None:
    publisher = SilentPartition(acknowledged)

    with pytest.raises(PublishFailed) as raised:
        await publisher.publish_all([event("a"), event("b")])

    assert isinstance(raised.value.outcomes[1], kind)
    assert "no answer within" in str(raised.value.outcomes[1])
