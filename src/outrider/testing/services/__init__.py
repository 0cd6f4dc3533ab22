"""Private PostgreSQL, RabbitMQ, Redis, NATS and Kafka servers on this machine, from nothing."""

from outrider.testing.services.errors import NotOurs, ServerFailed, ServiceMissing
from outrider.testing.services.kafka import Kafka
from outrider.testing.services.nats import Nats
from outrider.testing.services.postgres import Postgres
from outrider.testing.services.rabbitmq import RabbitMQ
from outrider.testing.services.redis import Redis
from outrider.testing.services.run import KINDS, Services
from outrider.testing.services.server import Server

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
