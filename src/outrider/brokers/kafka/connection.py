"""A Kafka cluster: its URL, its clients, its topics, and what the errors of aiokafka mean."""

from __future__ import annotations

import asyncio
import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, errors  # type: ignore[import-untyped]
from aiokafka.admin import AIOKafkaAdminClient, NewTopic  # type: ignore[import-untyped]
from aiokafka.conn import collect_hosts, create_conn  # type: ignore[import-untyped]

from outrider.brokers.kafka.config import KafkaConfig, read_url
from outrider.brokers.kafka.durability import check_durability, check_groups, missing_topic
from outrider.brokers.network_errors import Diagnosis, network_diagnosis, without_tls
from outrider.errors import ConfigurationError, OutriderError

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Iterator

    from outrider.ports import CheckResult

_TOPIC: Final = re.compile(r"(?!\.{1,2}$)[\w.-]{1,249}", re.ASCII)
_DEFAULT_REPLICAS: Final = 3
_NEW_TOPIC_POLL_S: Final = 0.05
_MAX_REQUEST_BYTES: Final = 2**31 - 1
_PERMANENT: Final = (
    errors.AuthenticationFailedError,
    errors.AuthenticationMethodNotSupported,
    errors.ClusterAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.IllegalSaslStateError,
    errors.InconsistentGroupProtocolError,
    errors.IncompatibleBrokerVersion,
    errors.InvalidGroupIdError,
    errors.InvalidPartitionsError,
    errors.InvalidReplicationFactorError,
    errors.InvalidSessionTimeoutError,
    errors.InvalidTopicError,
    errors.PolicyViolationError,
    errors.SaslAuthenticationFailed,
    errors.TopicAuthorizationFailedError,
    errors.UnsupportedSaslMechanismError,
    errors.UnsupportedVersionError,
)


class Cluster:
    """Where to connect to, and how. Its methods raise OutriderError only."""

    def __init__(self, url: str, config: KafkaConfig | None) -> None:
        self._servers, self.config = read_url(url, config or KafkaConfig())
        self.connect_timeout_s = self.config.connect_timeout.total_seconds()
        self._settings = self.config.client_settings()
        self._closing: set[asyncio.Task[None]] = set()

    def __str__(self) -> str:
        return f"kafka://{','.join(self._servers)}"

    def client_arguments(self, request_timeout_s: float) -> dict[str, Any]:
        """For any client of aiokafka."""
        return {
            "bootstrap_servers": self._servers,
            "request_timeout_ms": int(request_timeout_s * 1000),
            **self._settings,
        }

    async def start_producer(self, topics: Collection[str], batch_bytes: int) -> AIOKafkaProducer:
        """An idempotent producer, after a check that the topics exist."""
        await self.ensure_topics(topics)
        producer = AIOKafkaProducer(
            **self.client_arguments(self.config.publish_timeout.total_seconds()),
            enable_idempotence=True,
            acks="all",
            max_batch_size=batch_bytes,
            # The size of an event is checked against max_message_size before it is sent.
            max_request_size=_MAX_REQUEST_BYTES,
        )
        await self.start(producer)
        return producer

    async def start(self, client: Any) -> None:
        with self.translating():
            try:
                async with asyncio.timeout(self.connect_timeout_s):
                    await client.start()
            except BaseException:
                self.close_in_background(client.stop())
                raise

    async def ensure_topics(self, topics: Collection[str]) -> None:
        """Creates missing topics; raises ConfigurationError if `partitions` is not set."""
        admin = AIOKafkaAdminClient(**self.client_arguments(self.connect_timeout_s))
        with self.translating():
            try:
                async with asyncio.timeout(self.connect_timeout_s):
                    await admin.start()
                    while missing := set(topics).difference(await admin.list_topics()):
                        await self._create(admin, sorted(missing))
                        # A new topic takes a moment to reach the metadata of this broker.
                        await asyncio.sleep(_NEW_TOPIC_POLL_S)
            except errors.KafkaConnectionError as error:
                raise await self._connection_error() or error from None
            finally:
                await admin.close()

    async def check_durability(self, topics: Collection[str]) -> list[CheckResult]:
        """Whether the topics are there, and keep what they acknowledged; creates nothing."""
        admin = AIOKafkaAdminClient(**self.client_arguments(self.connect_timeout_s))
        with self.translating():
            try:
                async with asyncio.timeout(self.connect_timeout_s):
                    await admin.start()
                    missing = set(topics).difference(await admin.list_topics())
                    there = [topic for topic in topics if topic not in missing]
                    return [
                        *(missing_topic(topic, self.config.partitions) for topic in missing),
                        *(await check_durability(admin, there) if there or not topics else ()),
                        *(await self._check_groups(admin, there) if there else ()),
                    ]
            except errors.KafkaConnectionError as error:
                raise await self._connection_error() or error from None
            finally:
                await admin.close()

    async def _check_groups(
        self, admin: AIOKafkaAdminClient, topics: Collection[str]
    ) -> list[CheckResult]:
        async with AIOKafkaConsumer(**self.client_arguments(self.connect_timeout_s)) as consumer:
            return await check_groups(admin, consumer, topics)

    async def _create(self, admin: AIOKafkaAdminClient, names: list[str]) -> None:
        partitions = self.config.partitions
        if partitions is None:
            raise ConfigurationError(
                f"Kafka at {self} has no topic {', '.join(names)}: create it, or set partitions"
            )
        brokers = (await admin.describe_cluster())["brokers"]
        replicas = self.config.replicas or min(_DEFAULT_REPLICAS, len(brokers))
        answer = await admin.create_topics([NewTopic(name, partitions, replicas) for name in names])
        for _, code, *_ in answer.topic_errors:
            error = errors.for_code(code)
            if error not in (errors.NoError, errors.TopicAlreadyExistsError):
                raise error

    async def _connection_error(self) -> Exception | None:
        """Connects to each server once more, to learn the reason, which aiokafka only logs."""
        settings = self.client_arguments(self.connect_timeout_s)
        for host, port, _ in collect_hosts(settings.pop("bootstrap_servers")):
            try:
                connection = await create_conn(host, port, **settings)
            except Exception as error:  # noqa: BLE001 - the caller translates it
                return without_tls(error, tls="ssl_context" in settings)
            connection.close()
        return None

    @contextmanager
    def translating(self) -> Iterator[None]:
        """Raises the errors of aiokafka and of the network as OutriderError."""
        try:
            yield
        except (errors.KafkaError, errors.ConsumerStoppedError, OSError, UnicodeError) as error:
            raise translate(error, self) from error

    def close_in_background(self, closing: Coroutine[Any, Any, None]) -> None:
        """Closing a client may take as long as a request, so the caller does not wait for it."""
        task = asyncio.create_task(_suppress_errors(closing), name="outrider-kafka-close")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def wait_closed(self) -> None:
        """Waits until all clients are closed, at most as long as the connect timeout."""
        if self._closing:
            await asyncio.wait(self._closing, timeout=self.connect_timeout_s)


async def abort_producer(producer: AIOKafkaProducer) -> None:
    """Ends a producer without sending what it still holds. Its pending futures never complete.

    aiokafka has no public call for this: `stop` sends everything that is left, however long that
    takes. Therefore private attributes are used.
    """
    # _message_accumulator: holds the records that were not sent; _closed makes it refuse more.
    accumulator = producer._message_accumulator
    accumulator._closed = True
    # _sender.sender_task: the background task that sends. It waits itself for its open requests.
    sender = producer._sender.sender_task
    sender.cancel()
    try:
        await asyncio.wait({sender})
    finally:
        # _batches, _pending_batches: unsent and unanswered records, which `stop` would wait for.
        accumulator._batches.clear()
        accumulator._pending_batches.clear()
        await producer.stop()


async def _suppress_errors(closing: Coroutine[Any, Any, None]) -> None:
    with suppress(errors.KafkaError, OSError):
        await closing


def check_topic(name: str) -> str:
    if not _TOPIC.fullmatch(name):
        raise ConfigurationError(f"{name!r} is no name for a topic of Kafka")
    return name


def translate(error: Exception, address: object) -> OutriderError:
    """Names an error of aiokafka by its class only: its text may quote a value."""
    diagnosis = network_diagnosis(error) or Diagnosis(
        isinstance(error, _PERMANENT), type(error).__name__
    )
    return diagnosis.error("Kafka", address, error)
