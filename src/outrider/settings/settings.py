"""Settings of the commands: a flag, else the environment, else the default; all in one table."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from outrider.errors import ConfigurationError
from outrider.relay.config import RelayConfig
from outrider.relay.retry import ExponentialRetry, RetryPolicy, SteppedRetry
from outrider.settings.masking import mask_url
from outrider.store.schema.names import OutboxNames

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def _seconds(text: str) -> timedelta:
    return timedelta(seconds=float(text))


def _milliseconds(text: str) -> timedelta:
    return timedelta(milliseconds=float(text))


def _days(text: str) -> timedelta | None:
    return None if text == "never" else timedelta(days=float(text))


def _retry(text: str) -> RetryPolicy:
    policies: dict[str, RetryPolicy] = {
        "stepped": SteppedRetry(),
        "exponential": ExponentialRetry(),
    }
    return policies[text]


def _after_failure(text: str) -> bool:
    return {"go-on": False, "park": True}[text]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One thing that can be set, from text."""

    name: str
    help: str
    env: tuple[str, ...]
    default: str | None = None
    parse: Callable[[str], Any] = str
    secret: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


SETTINGS: Final = (
    Setting(
        name="database", env=("DATABASE_URL",), secret=True, help="postgresql:// or sqlite:///"
    ),
    Setting(name="table", env=("OUTBOX_TABLE",), default="outbox", help="the outbox table"),
    Setting(name="schema", env=("OUTBOX_SCHEMA",), help="the schema of all tables"),
    Setting(
        name="channel",
        env=("OUTBOX_CHANNEL",),
        default="outbox_channel",
        help="what relays listen on",
    ),
    Setting(
        name="to",
        env=("OUTBOX_TO", "RABBITMQ_URL"),
        secret=True,
        help="the broker: amqp://, kafka://, nats:// or redis://",
    ),
    Setting(
        name="destination",
        env=("OUTBOX_DESTINATION", "RABBITMQ_EXCHANGE"),
        default="messaging",
        help="the exchange, topic or stream there",
    ),
    Setting(
        name="sink",
        env=("OUTBOX_SINK",),
        default="default",
        help="which events: those that routes lead to this sink",
    ),
    Setting(
        name="rabbitmq_topology",
        env=("RABBITMQ_TOPOLOGY",),
        help="what to declare beside the exchange: messaging, or module:name of a Topology",
    ),
    Setting(
        name="batch_size",
        env=("OUTBOX_BATCH_SIZE",),
        default="100",
        parse=int,
        help="most events in hand at once",
    ),
    Setting(
        name="poll_interval",
        env=("OUTBOX_POLL_INTERVAL",),
        default="5",
        parse=_seconds,
        help="seconds between looks when no wake-up comes",
    ),
    Setting(
        name="poll_interval_ms",
        env=("OUTBOX_POLL_INTERVAL_MS",),
        parse=_milliseconds,
        help="the same in milliseconds; goes before the one in seconds",
    ),
    Setting(
        name="lease",
        env=("OUTBOX_LEASE",),
        default="10",
        parse=_seconds,
        help="seconds until a dead relay's lanes are taken over",
    ),
    Setting(
        name="max_retries",
        env=("OUTBOX_MAX_RETRIES",),
        default="10",
        parse=int,
        help="refusals before an event counts as failed",
    ),
    Setting(
        name="retry",
        env=("OUTBOX_RETRY",),
        default="stepped",
        parse=_retry,
        help="stepped or exponential waits",
    ),
    Setting(
        name="after_failure",
        env=("OUTBOX_AFTER_FAILURE",),
        default="go-on",
        parse=_after_failure,
        help="go-on, or park the aggregate until a person acts",
    ),
    Setting(
        name="retention_days",
        env=("OUTBOX_RETENTION_DAYS", "OUTBOX_CLEANUP_DAYS"),
        default="7",
        parse=_days,
        help="how long published events are kept; never keeps them",
    ),
    Setting(
        name="grace",
        env=("OUTBOX_GRACE",),
        default="25",
        parse=_seconds,
        help="seconds that a stop waits for what is in hand",
    ),
)


@dataclass(frozen=True)
class Settings:
    """What was found: the text of each setting, where it came from, and its value."""

    texts: Mapping[str, str | None]
    sources: Mapping[str, str]
    values: Mapping[str, Any]

    def relay_config(self, **more: Any) -> RelayConfig:
        v = self.values
        return RelayConfig(
            batch_size=v["batch_size"],
            poll_interval=v["poll_interval_ms"] or v["poll_interval"],
            lease=v["lease"],
            max_retries=v["max_retries"],
            retry=v["retry"],
            retention=v["retention_days"],
            grace=v["grace"],
            **more,
        )

    def names(self) -> OutboxNames:
        v = self.values
        return OutboxNames(table=v["table"], schema=v["schema"], channel=v["channel"])

    def shown(self) -> list[tuple[str, str, str]]:
        """Name, text and source of each, without secrets."""
        return [
            (setting.name, _masked(setting, self.texts[setting.name]), self.sources[setting.name])
            for setting in SETTINGS
        ]


def read_settings(flags: Mapping[str, str | None], environment: Mapping[str, str]) -> Settings:
    """All settings; what is wrong with them is reported together."""
    texts, sources, values, problems = {}, {}, {}, []
    for setting in SETTINGS:
        text, source = _find(setting, flags, environment)
        texts[setting.name], sources[setting.name] = text, source
        try:
            values[setting.name] = None if text is None else setting.parse(text)
        except (ValueError, KeyError):
            problems.append(f"{source}: {text!r} is not what it should be ({setting.help})")
    if problems:
        raise ConfigurationError("; ".join(problems))
    return Settings(texts, sources, values)


def _find(
    setting: Setting, flags: Mapping[str, str | None], environment: Mapping[str, str]
) -> tuple[str | None, str]:
    if (given := flags.get(setting.name)) is not None:
        return given, setting.flag
    for name in setting.env:
        if environment.get(name):
            return environment[name], name
    return setting.default, "default" if setting.default is not None else "not set"


def _masked(setting: Setting, text: str | None) -> str:
    if text is None:
        return ""
    return mask_url(text) if setting.secret else text
