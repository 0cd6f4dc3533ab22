"""Settings: derived from the configs; flag before environment before default; no password."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import make_url

from outrider import ConfigurationError, ExponentialRetry, OutboxNames, RelayConfig
from outrider.cli.publishers import make_publisher
from outrider.settings import fields as derived
from outrider.settings.fields import CONFIGS, Setting, all_settings, field_docs, settings_of
from outrider.settings.masking import mask_url
from outrider.settings.process import ProcessConfig, RelayProcessConfig
from outrider.settings.settings import Settings, read_config, read_settings
from outrider.settings.table import settings_table
from outrider.settings.unknown_variables import unknown_variables
from outrider.store.engines import describe

ROOT = Path(__file__).parents[2]
SAMPLES = {"database": "sqlite:///x.db", "retry": "exponential", "after_failure": "park"}
SAMPLES |= {"health": ":9100", "quiet": "yes", "audit": "no", "loops": "3", "retention_days": "3"}
SAMPLES |= {"error_detail": "message"}
SETTINGS = {setting.name: setting for setting in all_settings()}


def sample(setting: Setting) -> str:
    """A text that differs from the default."""
    numeric = setting.kind.name in ("NUMBER", "SECONDS", "MILLISECONDS")
    return SAMPLES.get(setting.name, "33" if numeric else "other")


def value_of(settings: Settings, setting: Setting) -> object:
    parts = (settings.process, settings.names, settings.relay)
    [part] = [part for part in parts if type(part) is setting.config]
    return getattr(part, setting.field)


def test_defaults_are_those_of_the_seeds() -> None:
    config = read_settings({}, {}).relay

    assert config.batch_size == 100
    assert config.poll_interval == timedelta(seconds=5)
    assert config.retention == timedelta(days=7)


@pytest.mark.parametrize("policy", ["stepped", "exponential"])
def test_tenth_refusal_is_the_last_by_default(policy: str) -> None:
    config = read_settings({"retry": policy}, {}).relay

    assert config.max_retries == 10


def test_every_field_of_the_configs_is_a_setting_with_a_sentence() -> None:
    there = {(setting.config, setting.field) for setting in SETTINGS.values()}

    assert len(SETTINGS) == len(all_settings())
    assert there == {(config, each.name) for config in CONFIGS for each in fields(config)}
    assert [name for name, setting in SETTINGS.items() if not setting.help.endswith(".")] == []


def test_defaults_are_those_of_the_configs() -> None:
    settings = read_settings({}, {})

    assert settings.process == RelayProcessConfig()
    assert settings.names == OutboxNames()
    assert settings.relay == RelayConfig(name=settings.relay.name)
    shown = {name: setting.default for name, setting in SETTINGS.items()}
    assert (shown["retention_days"], shown["lease"], shown["retry"]) == ("7", "10", "stepped")


@pytest.mark.parametrize("name", SETTINGS)
def test_setting_is_read_from_its_flag(name: str) -> None:
    setting = SETTINGS[name]

    settings = read_settings({name: sample(setting)}, {})

    assert value_of(settings, setting) == setting.kind.parse(sample(setting))
    assert value_of(settings, setting) != value_of(read_settings({}, {}), setting)
    assert {each.setting.name: each.source for each in settings.found}[name] == setting.flag


@pytest.mark.parametrize(
    ("name", "variable"), [(s.name, v) for s in SETTINGS.values() for v in s.environment]
)
def test_setting_is_read_from_each_of_its_variables(name: str, variable: str) -> None:
    setting = SETTINGS[name]

    settings = read_settings({}, {variable: sample(setting)})

    assert value_of(settings, setting) == setting.kind.parse(sample(setting))
    assert {each.setting.name: each.source for each in settings.found}[name] == variable


def test_variables_are_named_after_the_fields_and_the_old_names_stay() -> None:
    known = {name for setting in SETTINGS.values() for name in setting.environment}

    assert known >= {
        *("DATABASE_URL", "RABBITMQ_URL", "RABBITMQ_EXCHANGE", "RABBITMQ_TOPOLOGY"),
        *("OUTBOX_POLL_INTERVAL", "OUTBOX_POLL_INTERVAL_MS", "OUTBOX_BATCH_SIZE"),
        *("OUTBOX_MAX_RETRIES", "OUTBOX_CLEANUP_DAYS", "OUTBOX_RETENTION_DAYS"),
        *("OUTRIDER_HEALTH", "OUTRIDER_AUDIT"),
    }
    assert known >= {f"OUTBOX_{each.name.upper()}" for each in fields(OutboxNames)}


def test_empty_variable_counts_as_not_set() -> None:
    settings = read_settings({}, dict.fromkeys(("OUTBOX_BATCH_SIZE", "OUTBOX_PREFIX"), ""))

    assert settings.relay.batch_size == 100
    assert {each.setting.name: each.source for each in settings.found}["prefix"] == "not set"


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
    config = settings.relay

    assert settings.process.destination == "shop"
    assert config.poll_interval == timedelta(seconds=2.5)
    assert (config.batch_size, config.max_retries) == (500, 4)
    assert config.retention == timedelta(days=3)
    assert isinstance(config.retry, ExponentialRetry)


def test_variables_of_the_messaging_service_reach_its_publisher_and_its_relay() -> None:
    environment = {
        "RABBITMQ_URL": "amqp://guest:hidden@broker.example:5672/",
        "RABBITMQ_EXCHANGE": "letters",
        "OUTBOX_POLL_INTERVAL": "7",
        "OUTBOX_BATCH_SIZE": "50",
        "OUTBOX_MAX_RETRIES": "3",
        "OUTBOX_CLEANUP_DAYS": "2",
    }

    settings = read_settings({}, environment)
    publisher = str(make_publisher(settings.process))

    assert "broker.example" in publisher
    assert "letters" in publisher
    assert "hidden" not in publisher
    relay = settings.relay
    assert (relay.poll_interval, relay.retention) == (timedelta(seconds=7), timedelta(days=2))
    assert (relay.batch_size, relay.max_retries) == (50, 3)


def test_defaults_of_the_messaging_service_are_kept() -> None:
    settings = read_settings({}, {"RABBITMQ_URL": "amqp://localhost"})

    assert settings.process.destination == "messaging"
    assert settings.relay.poll_interval == timedelta(seconds=5)
    assert (settings.relay.batch_size, settings.relay.max_retries) == (100, 10)
    assert settings.relay.retention == timedelta(days=7)


def test_flags_override_the_environment() -> None:
    settings = read_settings({"batch_size": "7"}, {"OUTBOX_BATCH_SIZE": "500"})

    assert settings.relay.batch_size == 7


def test_flag_overrides_a_variable_that_is_in_another_unit() -> None:
    environment = {"OUTBOX_POLL_INTERVAL": "9", "OUTBOX_POLL_INTERVAL_MS": "100"}

    by_flag = read_settings({"poll_interval": "2"}, environment).relay
    by_variable = read_settings({}, environment).relay

    assert by_flag.poll_interval == timedelta(seconds=2)
    assert by_variable.poll_interval == timedelta(milliseconds=100)


def test_milliseconds_and_retention_days_of_the_foundation_work_too() -> None:
    environment = {"OUTBOX_POLL_INTERVAL_MS": "100", "OUTBOX_RETENTION_DAYS": "never"}

    config = read_settings({}, environment).relay

    assert config.poll_interval == timedelta(milliseconds=100)
    assert config.retention is None


def test_defaults_are_those_of_the_messaging_service_and_of_the_foundation() -> None:
    with_wake_ups = read_settings({}, {"DATABASE_URL": "postgresql://localhost/shop"}).relay
    without = read_settings({}, {"DATABASE_URL": "sqlite:///shop.db"}).relay
    shown = {each.setting.name: each.text for each in read_settings({}, {}).found}

    assert with_wake_ups.poll_interval == RelayConfig().poll_interval == timedelta(seconds=5)
    assert without.poll_interval == timedelta(milliseconds=100)
    assert {with_wake_ups.batch_size, without.batch_size} == {100}
    assert {with_wake_ups.retention, without.retention} == {timedelta(days=7)}
    names = ("poll_interval", "poll_interval_ms", "batch_size", "retention_days")
    assert [shown[name] for name in names] == ["5", "100", "100", "7"]


@pytest.mark.parametrize(
    ("variable", "value"), [("OUTBOX_POLL_INTERVAL", "30"), ("OUTBOX_POLL_INTERVAL_MS", "30000")]
)
@pytest.mark.parametrize("database", ["sqlite:///shop.db", "postgresql://localhost/shop"])
def test_poll_interval_that_is_given_is_that_of_every_database(
    database: str, variable: str, value: str
) -> None:
    settings = read_settings({}, {"DATABASE_URL": database, variable: value})

    assert settings.relay.poll_interval == timedelta(seconds=30)


def test_all_problems_are_reported_together_by_where_they_came_from() -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_settings({"lease": "soon"}, {"OUTBOX_BATCH_SIZE": "many", "OUTBOX_RETRY": "never"})

    assert str(caught.value).split("; ") == [
        "OUTBOX_BATCH_SIZE: must be a whole number up to 9,223,372,036,854,775,807",
        "OUTBOX_RETRY: must be stepped or exponential",
        "--lease: must be a number of seconds, up to a hundred years",
    ]


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("retention_days", "-1", "retention must be at least 0"),
        ("batch_size", "0", "batch_size must be at least 1"),
        ("batch_bytes", "-5", "batch_bytes must be at least 1"),
        ("poll_interval", "0", "poll_interval must be above 0"),
        ("poll_interval_ms", "-1", "poll_interval must be above 0"),
        ("lease", "0.5", "lease must be at least 1 second"),
        ("loops", "65", "loops must be from 1 to 64"),
        ("publish_timeout", "0", "publish_timeout must be above 0"),
        ("max_retries", "0", "max_retries must be at least 1"),
        ("max_crashes", "0", "max_crashes must be at least 1"),
        ("grace", "-1", "grace must be at least 0"),
        ("processes", "0", "processes must be from 1 to 64"),
        ("table", "Out Box", "use 1 to 63 lower-case letters"),
        ("database", "mysql://u:canary@h/d", "use postgresql://"),
    ],
)
def test_value_out_of_range_is_refused_by_the_name_that_set_it(
    name: str, text: str, rule: str
) -> None:
    variable = SETTINGS[name].environment[-1]

    with pytest.raises(ConfigurationError) as by_flag:
        read_settings({name: text}, {})
    with pytest.raises(ConfigurationError) as by_variable:
        read_settings({}, {variable: text})

    assert str(by_flag.value).startswith(f"{SETTINGS[name].flag}: ")
    assert str(by_variable.value).startswith(f"{variable}: ")
    assert rule in str(by_flag.value)
    assert "canary" not in str(by_flag.value)


@pytest.mark.parametrize(
    "text", ["nan", "inf", "-inf", "1e300", "9e12", str(2**63), "9" * 5000, "soon", "1 2"]
)
@pytest.mark.parametrize(
    "name", [s.name for s in SETTINGS.values() if s.kind.name not in ("TEXT", "URL")]
)
def test_what_is_no_sensible_number_is_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{SETTINGS[name].flag}: must be ") as caught:
        read_settings({name: text}, {})

    assert text not in str(caught.value)


def test_problems_of_all_configs_are_reported_together() -> None:
    with pytest.raises(ConfigurationError, match=r"--processes.*--channel.*--grace"):
        read_settings({"processes": "x", "channel": "X", "grace": "x"}, {})


def test_names_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="two tables would share a name"):
        read_settings({"processed": "outbox"}, {})


def test_one_config_is_read_without_the_others() -> None:
    environment = {"OUTBOX_BATCH_SIZE": "x", "OUTRIDER_AUDIT": "on", "OUTRIDER_PROCESSES": "4"}

    process = read_config(ProcessConfig, {"quiet": "no"}, environment)

    assert process == ProcessConfig(audit=True, processes=4)


def test_missing_source_leaves_settings_without_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: type) -> str:
        raise OSError("could not get source code")

    monkeypatch.setattr(derived.inspect, "getsource", missing)
    field_docs.cache_clear()

    assert {setting.help for setting in settings_of(OutboxNames)} == {""}
    assert "`OUTBOX_TABLE`" in settings_table()
    field_docs.cache_clear()


def test_unknown_variable_is_named_with_the_setting_that_was_meant() -> None:
    environment = {"OUTBOX_BATCHSIZE": "canary", "OUTBOX_X\x1b": "", "OUTBOX_LEASE": "1", "X": "1"}

    first, second = unknown_variables(environment)

    assert first == "OUTBOX_BATCHSIZE is not a setting; did you mean OUTBOX_BATCH_SIZE?"
    assert second.startswith("'OUTBOX_X\\x1b' is not a setting; `outrider config`")


def test_table_of_the_guide_has_every_setting_and_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts/settings_table.py"), "--check"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    table = settings_table()
    assert all(f"`{v}`" in table for s in SETTINGS.values() for v in (s.flag, *s.environment))


@pytest.mark.slow
def test_table_that_is_behind_is_refused_and_can_be_written(tmp_path: Path) -> None:
    script, guide = str(ROOT / "scripts/settings_table.py"), tmp_path / "relay.md"
    text = (ROOT / "docs/guides/relay.md").read_text()
    guide.write_text(text.replace("`OUTBOX_LEASE`", "`OUTBOX_RENT`"))

    behind = subprocess.run([sys.executable, script, "--check", str(guide)], check=False)
    written = subprocess.run([sys.executable, script, str(guide)], check=False)

    assert (behind.returncode, written.returncode) == (1, 0)
    assert guide.read_text() == text


def test_shown_settings_have_no_password() -> None:
    environment = {
        "DATABASE_URL": "postgresql+psycopg://app:canary@db/shop?sslpassword=canary",
        "RABBITMQ_URL": "amqps://app:canary%40@mq:5671/vhost",
    }

    settings = read_settings({}, environment)
    shown = str([each.masked_text for each in settings.found])

    assert "canary" not in shown
    assert "canary" not in repr(settings)
    assert "app:***@db" in shown


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("to", "app:canary@mq"),
        ("destination", "amqp://app:canary@mq"),
        ("rabbitmq_topology", "amqp://app:canary@mq"),
    ],
)
def test_password_in_the_wrong_place_is_not_shown(name: str, url: str) -> None:
    shown = str([each.masked_text for each in read_settings({name: url}, {}).found])

    assert "canary" not in shown
    assert "***" in shown


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app:can/ary@db:5432/shop",
        "redis://:x@canary@db:6379/0",
        "amqp://app:can ary@mq/",
        "amqp://app:canary/x@mq/",
        "amqp://app:p@ss:canary@mq/vhost",
        "nats://can/ary@mq",
        "kafka://app:can?ary@mq:9092",
        "nats://app:can/ary@one,nats://app:can/ary@two",
    ],
)
def test_password_with_odd_characters_is_masked_up_to_the_host(url: str) -> None:
    masked = mask_url(url)

    assert "can" not in masked
    assert "ary" not in masked
    assert masked.endswith(url.rpartition("@")[2])


@pytest.mark.parametrize(
    "flags",
    [
        {"health": "127.0.0.1:99999"},
        {"health": "9100"},
        {"health": "127.0.0.1:"},
        {"health": "127.0.0.1:٣"},
        {"health": "127.0.0.1:65535", "processes": "3"},
        {"sink": ""},
        {"sink": "a" * 64},
        {"sink": "a\nb"},
    ],
)
def test_address_and_sink_that_cannot_work_are_refused_by_name(flags: dict[str, str]) -> None:
    name = next(iter(flags))
    with pytest.raises(ConfigurationError, match=f"{name}.* must"):
        read_settings(flags, {})


def test_password_behind_the_question_mark_is_not_described() -> None:
    url = make_url("postgresql://app:secret@db/shop?password=secret&sslpassword=secret")

    assert describe(url) == "postgresql://app:***@db/shop"


SECRETS = st.text(st.characters(categories=["L", "N"]), min_size=6, max_size=12)


@given(SECRETS.map(lambda s: f"zz{s}zz"), SECRETS)
def test_no_spelling_of_a_password_survives_masking(secret: str, user: str) -> None:
    for url in (
        f"amqp://{user}:{secret}@host/vhost",
        f"postgresql://{user}:{secret}@one:1,two:2/db",
        f"postgresql://host/db?user={user}&password={secret}",
        f"redis://:{secret}@host:6379/0",
        f"nats://host?token={secret}&x=1",
        f"postgresql://host/db?password={secret}@{secret}&x=1",
    ):
        assert secret not in mask_url(url)
