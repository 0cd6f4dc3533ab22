"""Copies records that could not be handled to a topic of dead letters."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from outrider.brokers.dead_letter_headers import PREFIX, dead_letter_headers
from outrider.brokers.kafka.connection import abort_producer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiokafka import AIOKafkaProducer, ConsumerRecord  # type: ignore[import-untyped]

    from outrider.brokers.kafka.connection import Cluster


class DeadLetters:
    """One topic of dead letters per source topic, and a producer that starts at first use."""

    def __init__(self, cluster: Cluster, topics: Mapping[str, str], group: str) -> None:
        self._cluster, self._topics, self._group = cluster, topics, group
        self._opening = asyncio.Lock()
        self._producer: AIOKafkaProducer | None = None

    async def write(self, record: ConsumerRecord, reason: str) -> None:
        """Returns when the copy is stored."""
        config = self._cluster.config
        with self._cluster.translating():
            try:
                async with asyncio.timeout(config.publish_timeout.total_seconds()):
                    producer = await self._opened()
                    await producer.send_and_wait(
                        self._topics[record.topic],
                        record.value or b"",
                        record.key,
                        headers=self._headers(record, reason),
                    )
            except BaseException:
                self._abort()
                raise

    async def close(self) -> None:
        async with self._opening:
            self._abort()

    def _headers(self, record: ConsumerRecord, reason: str) -> list[tuple[str, bytes]]:
        added = dead_letter_headers(
            reason=reason,
            origin=f"{record.topic}/{record.partition}/{record.offset}",
            address=record.topic,
            group=self._group,
        )
        kept = [header for header in record.headers if not header[0].startswith(PREFIX)]
        return kept + [(name, value.encode()) for name, value in added.items()]

    async def _opened(self) -> AIOKafkaProducer:
        async with self._opening:
            if self._producer is None:
                batch_bytes = self._cluster.config.batch_bytes
                self._producer = await self._cluster.start_producer((), batch_bytes)
            return self._producer

    def _abort(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            self._cluster.close_in_background(abort_producer(producer))
