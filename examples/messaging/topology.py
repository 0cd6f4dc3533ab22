"""The audit queue besides: RABBITMQ_TOPOLOGY=examples.messaging.topology:audited."""

from outrider.brokers.rabbitmq import messaging_topology

audited = messaging_topology(audit=True)
