"""Settings: flag before environment before default, and no password in sight."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider import ConfigurationError, ExponentialRetry
from outrider.settings.masking import mask_url
from outrider.settings.settings import read_settings


def test_defaults_are_those_of_the_seeds() -> None:
    config = read_settings({}, {}).relay_config()

    assert config.batch_size == 100
    assert config.poll_interval == timedelta(seconds=5)
    assert config.max_retries == 10
    assert config.retention == timedelta(days=7)


def test_environment_overrides_defaults() -> None:
    environment = {
        "RABBITMQ_URL": "amqp://guest:guest@localhost:5672/",
        "RABBITMQ_EXCHANGE": "shop",
        "OUTBOX_POLL_INTERVAL": "2.5",
        "OUTBOX_BATCH_SIZE": "500",
        "OUTBOX_MAX_RETRIES": "4",
        "OUTBOX_CLEANUP_DAYS": "3",
        "OUTBOX_RETRY": "exponential",
    }
    settings = read_settings({}, environment)
    config = settings.relay_config()

    assert settings.values["destination"] == "shop"
    assert config.poll_interval == timedelta(seconds=2.5)
    assert (config.batch_size, config.max_retries) == (500, 4)
    assert config.retention == timedelta(days=3)
    assert isinstance(config.retry, ExponentialRetry)


def test_flags_override_the_environment() -> None:
    settings = read_settings({"batch_size": "7"}, {"OUTBOX_BATCH_SIZE": "500"})

    assert settings.values["batch_size"] == 7
    assert settings.sources["batch_size"] == "--batch-size"


def test_milliseconds_and_retention_days_of_the_foundation_work_too() -> None:
    environment = {"OUTBOX_POLL_INTERVAL_MS": "100", "OUTBOX_RETENTION_DAYS": "never"}

    config = read_settings({}, environment).relay_config()

    assert config.poll_interval == timedelta(milliseconds=100)
    assert config.retention is None


def test_all_problems_are_reported_together_by_where_they_came_from() -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_settings({"lease": "soon"}, {"OUTBOX_BATCH_SIZE": "many", "OUTBOX_RETRY": "never"})

    assert all(w in str(caught.value) for w in ("--lease", "OUTBOX_BATCH_SIZE", "OUTBOX_RETRY"))


def test_shown_settings_have_no_password() -> None:
    environment = {
        "DATABASE_URL": "postgresql://app:canary@db/shop?sslpassword=canary",
        "RABBITMQ_URL": "amqps://app:canary%40@mq:5671/vhost",
    }

    shown = str(read_settings({}, environment).shown())

    assert "canary" not in shown
    assert "app:***@db" in shown


SECRETS = st.text(st.characters(categories=["L", "N"]), min_size=6, max_size=12)


@given(SECRETS.map(lambda s: f"zz{s}zz"), SECRETS)
def test_no_spelling_of_a_password_survives_masking(secret: str, user: str) -> None:
    for url in (
        f"amqp://{user}:{secret}@host/vhost",
        f"postgresql://{user}:{secret}@one:1,two:2/db",
        f"postgresql://host/db?user={user}&password={secret}",
        f"redis://:{secret}@host:6379/0",
        f"nats://host?token={secret}&x=1",
    ):
        assert secret not in mask_url(url)
