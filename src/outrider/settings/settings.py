"""The settings of a process: a flag, else the environment, else the default of the config."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from outrider.errors import ConfigurationError
from outrider.relay.config import RelayConfig
from outrider.settings.fields import (
    CONFIGS,
    POLL_INTERVAL_WITHOUT_WAKE_UPS,
    Setting,
    all_settings,
    settings_of,
)
from outrider.settings.masking import mask_url
from outrider.settings.process import RelayProcessConfig
from outrider.store.schema.names import OutboxNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import DataclassInstance

    Config = TypeVar("Config", bound=DataclassInstance)
    Texts = Mapping[str, str | None]


@dataclass(frozen=True, kw_only=True)
class FoundSetting:
    """One setting as text, and where the text came from."""

    setting: Setting
    text: str | None = field(repr=False)
    source: str
    """The flag, the environment variable, "default" or "not set"."""

    @property
    def is_flag(self) -> bool:
        return self.source == self.setting.flag

    @property
    def is_given(self) -> bool:
        return self.is_flag or self.source in self.setting.environment

    def value(self) -> object:
        """The text as the config takes it; an error names the source of the text."""
        setting = self.setting
        try:
            value = setting.kind.parse(self.text or "")
        except (ValueError, KeyError, OverflowError):
            raise ConfigurationError(f"{self.source}: {setting.kind.rule}") from None
        try:
            setting.config(**{setting.field: value})
        except ConfigurationError as problem:
            reason = str(problem).removeprefix("relay: ")
            raise ConfigurationError(f"{self.source}: {reason}") from None
        return value

    @property
    def masked_text(self) -> str:
        """For people: without the password of a URL, even if it stands in another setting."""
        text = self.text or ""
        if text and self.setting.is_url and "://" not in text:
            return "***"  # not a URL: nothing tells which part of it is a password
        return mask_url(text)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of a relay process, as the configs that its parts take."""

    process: RelayProcessConfig
    names: OutboxNames
    relay: RelayConfig
    found: tuple[FoundSetting, ...] = field(repr=False)
    """Every setting with its source."""

    @property
    def in_effect(self) -> list[FoundSetting]:
        """One for each field, for `outrider config`: of two that set one field, what counts."""
        parts: dict[type, object] = {
            type(part): part for part in (self.process, self.names, self.relay)
        }
        chosen = dict[tuple[object, str], FoundSetting]()
        for each in self.found:
            config, field = each.setting.config, each.setting.field
            other = chosen.setdefault((config, field), each)
            counts = other is not each and each.value() == getattr(parts[config], field)
            if counts and each.is_given >= other.is_given:
                chosen[config, field] = each
        return list(chosen.values())


def read_settings(flags: Texts, environment: Mapping[str, str]) -> Settings:
    """All settings of a relay process; all problems are reported together.

    `flags` are texts by the name of a setting, such as {"batch_size": "500"}; they override
    `environment`. None and an empty environment variable mean that it is not given.
    """
    _refuse([p for config in CONFIGS for p in _read(config, flags, environment)[1]])
    process = read_config(RelayProcessConfig, flags, environment)
    relay = read_config(RelayConfig, flags, environment)
    found = tuple(_find(setting, flags, environment) for setting in all_settings())
    polls = [each.is_given for each in found if each.setting.field == "poll_interval"]
    if (process.database or "").startswith("sqlite") and not any(polls):
        relay = replace(relay, poll_interval=POLL_INTERVAL_WITHOUT_WAKE_UPS)
    return Settings(
        process=process,
        names=read_config(OutboxNames, flags, environment),
        relay=relay,
        found=found,
    )


def read_config(config: type[Config], flags: Texts, environment: Mapping[str, str]) -> Config:
    """One config dataclass: what is given for its fields, and its own defaults for the rest."""
    values, problems = _read(config, flags, environment)
    _refuse(problems)
    return config(**values)


def _read(
    config: type[DataclassInstance], flags: Texts, environment: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """Values for the config, and problems; each names the flag or variable that it comes from."""
    found = [_find(setting, flags, environment) for setting in settings_of(config)]
    values, problems = dict[str, Any](), list[str]()
    # Flags come last: two settings may set one field, and then the flag counts.
    for each in sorted((each for each in found if each.is_given), key=lambda each: each.is_flag):
        try:
            values[each.setting.field] = each.value()
        except ConfigurationError as problem:
            problems.append(str(problem))
    if not problems:
        try:
            config(**values)
        except ConfigurationError as problem:  # each value is fine, but not their combination
            problems.append(str(problem))
    return values, problems


def _find(setting: Setting, flags: Texts, environment: Mapping[str, str]) -> FoundSetting:
    if (given := flags.get(setting.name)) is not None:
        return FoundSetting(setting=setting, text=given, source=setting.flag)
    for name in setting.environment:
        if environment.get(name):
            return FoundSetting(setting=setting, text=environment[name], source=name)
    source = "default" if setting.default is not None else "not set"
    return FoundSetting(setting=setting, text=setting.default, source=source)


def _refuse(problems: list[str]) -> None:
    if problems:
        raise ConfigurationError("; ".join(problems))
