"""What an administrator does to a RabbitMQ node; Erlang calls, since rabbitmqctl takes seconds."""

from __future__ import annotations

from outrider.testing.services import RabbitMQ


def add_user(
    server: RabbitMQ, user: str, password: str, *, configure: str, write: str, read: str
) -> None:
    """Add a user with these permissions in the virtual host of the server's URL."""
    server.eval(f"rabbit_auth_backend_internal:add_user({_b(user)}, {_b(password)}, {_b('test')}).")
    allowed = ", ".join(map(_b, (user, _vhost(server), configure, write, read, "test")))
    server.eval(f"rabbit_auth_backend_internal:set_permissions({allowed}).")


def allow_topic(server: RabbitMQ, user: str, exchange: str, *, write: str, read: str) -> None:
    allowed = ", ".join(map(_b, (user, _vhost(server), exchange, write, read, "test")))
    server.eval(f"rabbit_auth_backend_internal:set_topic_permissions({allowed}).")


def close_connections(server: RabbitMQ) -> None:
    """Close all connections of this server's virtual host, and those of no other test worker."""
    connections = f"rabbit_connection_tracking:list({_b(_vhost(server))})"
    pids = f"[element(6, Connection) || Connection <- {connections}]"
    server.eval(f"rabbit_networking:close_connections({pids}, {_b('goodbye')}).")


def set_memory_limit(server: RabbitMQ, part: float) -> None:
    server.eval(f"vm_memory_monitor:set_vm_memory_high_watermark({part:f}).")


def set_max_message_size(server: RabbitMQ, size: int) -> None:
    server.eval(f"application:set_env(rabbit, max_message_size, {size}).")


def _vhost(server: RabbitMQ) -> str:
    return server.vhost or server.name


def _b(text: str) -> str:
    """An Erlang binary."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'<<"{escaped}">>'
