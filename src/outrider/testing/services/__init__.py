"""Private PostgreSQL, RabbitMQ, Redis, NATS and Kafka servers on this machine."""

from outrider.testing.services.errors import NotOurs, ServerFailed, ServiceMissing
from outrider.testing.services.run import KINDS, Services
from outrider.testing.services.servers.kafka import Kafka
from outrider.testing.services.servers.nats import Nats
from outrider.testing.services.servers.postgres import Postgres
from outrider.testing.services.servers.rabbitmq import RabbitMQ
from outrider.testing.services.servers.redis import Redis
from outrider.testing.services.servers.server import Server

__all__ = [
    "KINDS",
    "Kafka",
    "Nats",
    "NotOurs",
    "Postgres",
    "RabbitMQ",
    "Redis",
    "Server",
    "ServerFailed",
    "ServiceMissing",
    "Services",
]
