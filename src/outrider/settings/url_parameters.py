"""Parameters of a broker's URL: each one sets a field of the broker's config."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote

from outrider.errors import ConfigurationError
from outrider.settings.parsing import SWITCH, parse_integer, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from _typeshed import DataclassInstance

    Config = TypeVar("Config", bound=DataclassInstance)


_PARSERS: Final[dict[str, Callable[[str], object]]] = {
    "bool": SWITCH.parse,
    "int": parse_integer,
    "str": str,
    "Path": Path,
    "timedelta": parse_seconds,
}


def with_url_settings(
    url: str, config: Config, *, leave: Collection[str] = ()
) -> tuple[str, Config]:
    """The URL without its parameters, and the config with the fields that they set."""
    bare, found = split_settings(url, config, leave=leave)
    return bare, replace(config, **found) if found else config


def split_settings(
    url: str, config: DataclassInstance, *, leave: Collection[str] = ()
) -> tuple[str, dict[str, Any]]:
    """The URL without the parameters that set fields of the config, and the values of these fields.

    Parameters that are no field, or that `leave` names, stay in the URL; the broker checks them.
    No error repeats a value: a misplaced part of a URL is often a password.
    """
    bare, _, query = url.partition("?")
    parsers = _parsers(config)
    found, rest, problems = dict[str, Any](), list[str](), list[str]()
    for part in query.split("&") if query else ():
        name, _, text = part.partition("=")
        parse = None if name in leave else parsers.get(name)
        if parse is None:
            rest.append(part)
            continue
        try:
            found[name] = parse(unquote(text))
        except (ValueError, LookupError, OverflowError):
            problems.append(f"{name} behind the ? of the URL is not understood")
    if problems:
        raise ConfigurationError(f"{type(config).__name__}: {'; '.join(problems)}")
    return bare + ("?" + "&".join(rest) if rest else ""), found


def allowed_parameters(config: DataclassInstance | type[DataclassInstance]) -> list[str]:
    """The names of the parameters that set fields of the config."""
    return [name for name, parse in _parsers(config).items() if parse is not None]


def _parsers(
    config: DataclassInstance | type[DataclassInstance],
) -> dict[str, Callable[[str], object] | None]:
    return {each.name: _PARSERS.get(_kind(each.type)) for each in fields(config)}


def _kind(annotation: object) -> str:
    """The name of the type; a Literal is a text, and the config checks it."""
    name = str(annotation).removesuffix(" | None")
    return "str" if name.startswith("Literal") else name
