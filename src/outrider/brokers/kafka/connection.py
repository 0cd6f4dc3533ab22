"""A Kafka cluster as both sides see it: its clients, its topics, and what its errors mean."""

from __future__ import annotations

import asyncio
import re
import ssl
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from aiokafka import AIOKafkaProducer, errors  # type: ignore[import-untyped]
from aiokafka.admin import AIOKafkaAdminClient, NewTopic  # type: ignore[import-untyped]
from aiokafka.conn import collect_hosts, create_conn  # type: ignore[import-untyped]

from outrider.brokers.kafka.config import KafkaConfig, read_url
from outrider.brokers.kafka.durability import check_durability
from outrider.errors import BrokerUnavailable, ConfigurationError, OutriderError

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Iterator

    from outrider.ports import CheckResult

_TOPIC: Final = re.compile(r"(?!\.{1,2}$)[\w.-]{1,249}", re.ASCII)
_USUAL_REPLICAS: Final = 3
_A_MOMENT: Final = 0.05
_NO_LIMIT: Final = 2**31 - 1
_NO_WAITING_HELPS: Final = (
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
    """Where to connect to, and how. What its methods raise is translated."""

    def __init__(self, url: str, config: KafkaConfig | None) -> None:
        self._servers, self.config = read_url(url, config or KafkaConfig())
        self.patience = self.config.connect_timeout.total_seconds()
        self._settings = self.config.for_client()
        self._endings: set[asyncio.Task[None]] = set()

    def __str__(self) -> str:
        return f"kafka://{','.join(self._servers)}"

    def client(self, request_timeout: float) -> dict[str, Any]:
        """Arguments for any client of aiokafka; a request may take so many seconds."""
        timeout = int(request_timeout * 1000)
        return {
            "bootstrap_servers": self._servers,
            "request_timeout_ms": timeout,
            **self._settings,
        }

    async def producer(self, topics: Collection[str], batch_bytes: int) -> AIOKafkaProducer:
        """Started, and the topics are there."""
        await self.ensure(topics)
        producer = AIOKafkaProducer(
            **self.client(self.config.publish_timeout.total_seconds()),
            enable_idempotence=True,
            acks="all",
            max_batch_size=batch_bytes,
            max_request_size=_NO_LIMIT,
        )
        await self.start(producer)
        return producer

    async def start(self, client: Any) -> None:
        with self.translating():
            try:
                async with asyncio.timeout(self.patience):
                    await client.start()
            except BaseException:
                self.end(client.stop())
                raise

    async def ensure(self, topics: Collection[str]) -> None:
        """Create those that are missing, or say that they are."""
        admin = AIOKafkaAdminClient(**self.client(self.patience))
        with self.translating():
            try:
                async with asyncio.timeout(self.patience):
                    await admin.start()
                    while missing := set(topics).difference(await admin.list_topics()):
                        await self._create(admin, sorted(missing))
                        await asyncio.sleep(_A_MOMENT)  # until this broker has heard of them
            except errors.KafkaConnectionError as error:
                raise await self._why() or error from None
            finally:
                await admin.close()

    async def check_durability(self, topics: Collection[str]) -> list[CheckResult]:
        admin = AIOKafkaAdminClient(**self.client(self.patience))
        with self.translating():
            try:
                async with asyncio.timeout(self.patience):
                    await admin.start()
                    return await check_durability(admin, topics)
            finally:
                await admin.close()

    async def _create(self, admin: AIOKafkaAdminClient, names: list[str]) -> None:
        partitions = self.config.partitions
        if partitions is None:
            raise ConfigurationError(
                f"Kafka at {self} has no topic {', '.join(names)}: create it, or set partitions"
            )
        brokers = (await admin.describe_cluster())["brokers"]
        replication = self.config.replication or min(_USUAL_REPLICAS, len(brokers))
        new = [NewTopic(name, partitions, replication) for name in names]
        answer = await admin.create_topics(new)
        for _, code, *_ in answer.topic_errors:
            error = errors.for_code(code)
            if error not in (errors.NoError, errors.TopicAlreadyExistsError):
                raise error

    async def _why(self) -> Exception | None:
        """What aiokafka only logs when it can reach none of the servers."""
        settings = self.client(self.patience)
        for host, port, _ in collect_hosts(settings.pop("bootstrap_servers")):
            try:
                connection = await create_conn(host, port, **settings)
            except Exception as error:  # noqa: BLE001 - it is handed on
                return error
            connection.close()
        return None

    @contextmanager
    def translating(self) -> Iterator[None]:
        """What the client raises inside is raised as one of ours."""
        try:
            yield
        except (errors.KafkaError, errors.ConsumerStoppedError, OSError, UnicodeError) as error:
            raise self.translate(error) from error

    def translate(self, error: Exception) -> OutriderError:
        return _translate(error, str(self))

    def end(self, closing: Coroutine[Any, Any, None]) -> None:
        """Let a client close itself, which may take as long as a request."""
        task = asyncio.create_task(_quietly(closing), name="outrider-kafka-close")
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def ended(self) -> None:
        """Wait for what is closing, but not for ever."""
        if self._endings:
            await asyncio.wait(self._endings, timeout=self.patience)


async def abort_producer(producer: AIOKafkaProducer) -> None:
    """End it without sending anything more, for which aiokafka has no call of its own: `stop`
    sends all that is left, for as long as it takes. Whoever waits for it now waits in vain."""
    accumulator, sender = producer._message_accumulator, producer._sender.sender_task
    accumulator._closed = True  # takes nothing more
    sender.cancel()
    try:
        # What is on its way is waited for by the sender itself.
        await asyncio.wait({sender})
    finally:
        accumulator._batches.clear()
        accumulator._pending_batches.clear()
        await producer.stop()


async def _quietly(closing: Coroutine[Any, Any, None]) -> None:
    with suppress(errors.KafkaError, OSError):
        await closing


def check_topic(name: str) -> str:
    if not _TOPIC.fullmatch(name):
        raise ConfigurationError(f"{name!r} is no name for a topic of Kafka")
    return name


def _translate(error: Exception, where: str) -> OutriderError:
    match error:
        case ssl.SSLCertVerificationError():
            for_ever, why = True, f"its certificate is not trusted: {error.verify_message}"
        case ssl.SSLError():
            for_ever, why = False, f"no TLS: {error.reason}"
        case UnicodeError():
            for_ever, why = True, "a host's name is not valid"
        case TimeoutError():
            for_ever, why = False, "no answer in time"
        case OSError():
            for_ever, why = False, error.strerror or type(error).__name__
        case _:
            for_ever, why = isinstance(error, _NO_WAITING_HELPS), type(error).__name__
    kind = ConfigurationError if for_ever else BrokerUnavailable
    return kind(f"Kafka at {where}: {why}")
