"""All settings as one Markdown table, for the guide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.settings.fields import all_settings

if TYPE_CHECKING:
    from outrider.settings.fields import Setting

_HEAD = "| flag | environment | value | default | meaning |\n|---|---|---|---|---|\n"


def settings_table() -> str:
    """A row for every setting, with a line break at the end."""
    return _HEAD + "".join(_row(setting) for setting in all_settings())


def _row(setting: Setting) -> str:
    environment = ", ".join(f"`{name}`" for name in setting.environment)
    default = "" if setting.default is None else f"`{setting.default}`"
    flags = ", ".join(f"`{flag}`" for flag in setting.flags)
    cells = (flags, environment, setting.value_name, default, setting.help)
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |\n"
