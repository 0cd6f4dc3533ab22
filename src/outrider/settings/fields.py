"""Settings derived from the fields of the config dataclasses: names, defaults, help texts."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import MISSING, dataclass, fields
from datetime import timedelta
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from outrider.relay.config import RelayConfig
from outrider.settings.parsing import DAYS_OR_NEVER, MILLISECONDS, SWITCH, Kind, kind_of
from outrider.settings.process import RelayProcessConfig
from outrider.store.schema.names import OutboxNames

if TYPE_CHECKING:
    from dataclasses import Field

    from _typeshed import DataclassInstance

PREFIX: Final = "OUTBOX_"
POLL_INTERVAL_WITHOUT_WAKE_UPS: Final = timedelta(milliseconds=100)
CONFIGS: Final = (RelayProcessConfig, OutboxNames, RelayConfig)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One field of a config, as it is given by a flag or an environment variable."""

    name: str
    """The name in `outrider config`; flag and environment variable are made from it."""
    config: type[DataclassInstance]
    field: str
    kind: Kind
    default: str | None
    """As text; None if there is no default, or if each start makes another one."""
    environment: tuple[str, ...]
    """The variables that set it; the first that is not empty counts."""
    is_url: bool = False
    """Whether the text is a URL, which may hold a password."""
    help_text: str | None = None
    """The help text, if it is not the docstring of the field."""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def flags(self) -> tuple[str, ...]:
        """All flags that set it: a switch has one to turn it on and one to turn it off."""
        return (self.flag, self.flag.replace("--", "--no-", 1)) if self.is_switch else (self.flag,)

    @property
    def is_switch(self) -> bool:
        """Whether the flag takes no value."""
        return self.kind is SWITCH

    @property
    def value_name(self) -> str:
        """What a help text calls the value."""
        return "URL" if self.is_url else self.kind.name

    @property
    def help(self) -> str:
        return self.help_text or field_docs(self.config).get(self.field, "")


def all_settings() -> tuple[Setting, ...]:
    """Every setting of `outrider relay`."""
    return tuple(setting for config in CONFIGS for setting in settings_of(config))


@cache
def settings_of(config: type[DataclassInstance]) -> tuple[Setting, ...]:
    """The settings of one config dataclass; its own fields come before inherited ones."""
    own = inspect.get_annotations(config)
    made = []
    for each in sorted(fields(config), key=lambda each: each.name not in own):
        made.append(_setting(config, each))
        if (config, each.name) == (RelayConfig, "poll_interval"):
            made.append(_poll_interval_in_milliseconds())
    return tuple(made)


def _setting(config: type[DataclassInstance], each: Field[Any]) -> Setting:
    name, kind, aliases = each.name, kind_of(str(each.type)), each.metadata.get("aliases", ())
    if (config, each.name) == (RelayConfig, "retention"):
        name, kind, aliases = "retention_days", DAYS_OR_NEVER, (f"{PREFIX}CLEANUP_DAYS",)
    variable = each.metadata.get("prefix", PREFIX) + name.upper()
    return Setting(
        name=name,
        config=config,
        field=each.name,
        kind=kind,
        default=_default(each, kind),
        environment=(variable, *aliases),
        is_url=each.metadata.get("url", False),
    )


def _poll_interval_in_milliseconds() -> Setting:
    return Setting(
        name="poll_interval_ms",
        config=RelayConfig,
        field="poll_interval",
        kind=MILLISECONDS,
        default=MILLISECONDS.show(POLL_INTERVAL_WITHOUT_WAKE_UPS),
        environment=(f"{PREFIX}POLL_INTERVAL_MS",),
        help_text="The poll interval in milliseconds; overrides the one in seconds. Its default is "
        "for SQLite, where nothing wakes up a relay in a process of its own.",
    )


def _default(each: Field[Any], kind: Kind) -> str | None:
    if each.default is not MISSING:
        # An empty text means that nothing is set.
        return None if each.default in (None, "") else kind.show(each.default)
    # A function makes another default at each start, such as a name with the process id.
    factory: object = each.default_factory
    return kind.show(factory()) if isinstance(factory, type) else None


@cache
def field_docs(config: type[DataclassInstance]) -> dict[str, str]:
    """The docstring below each field, in one line; empty where the source is not installed."""
    found = dict[str, str]()
    for each in reversed(config.__mro__[:-1]):
        try:
            source = textwrap.dedent(inspect.getsource(each))
        except (OSError, TypeError):
            continue
        found |= _docstrings(ast.parse(source).body[0])
    return found


def _docstrings(tree: ast.stmt) -> dict[str, str]:
    """The text right below each annotated name of a class."""
    found = {}
    for first, second in pairwise(tree.body if isinstance(tree, ast.ClassDef) else ()):
        match first, second:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=text)):
                found[name] = " ".join(str(text).split())
            case _:
                pass
    return found
