"""Writes the table of all settings into the guide; with --check it only compares."""

import sys
from pathlib import Path

from outrider.settings.table import settings_table

GUIDE = Path(__file__).parents[1] / "docs/guides/relay.md"
BEGIN, END = "<!-- settings: written by `make settings` -->\n", "<!-- end of settings -->\n"


def main(arguments: list[str]) -> int:
    paths = [Path(argument) for argument in arguments if argument != "--check"]
    guide = paths[0] if paths else GUIDE
    text = guide.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = f"{before}{BEGIN}\n{settings_table()}\n{END}{after}"
    if "--check" not in arguments:
        guide.write_text(wanted)
    elif text != wanted:
        print(f"{guide}: the table of settings is behind; run `make settings`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
