"""`python -m model` searches all variants; with a variant's name, that one, and how it breaks."""

from __future__ import annotations

import json
import sys

from model.search import HERE, Found, search
from model.variants import VARIANTS


def main(names: list[str]) -> int:
    print(f"{'variant':<9}{'expected':<11}{'result':<11}{'states':>10}{'seconds':>9}  about")
    found = []
    for variant in VARIANTS:
        if not names or variant.name in names:
            found.append(search(variant))
            _show(found[-1], path=bool(names))
    if not names:
        (HERE / "results.json").write_text(
            json.dumps([_row(each) for each in found], indent=1) + "\n"
        )
    return 0 if found and all(each.as_expected for each in found) else 1


def _show(found: Found, *, path: bool) -> None:
    variant = found.variant
    mark = "" if found.as_expected else "  NOT AS EXPECTED"
    print(
        f"{variant.name:<9}{variant.expected:<11}{found.result:<11}{found.states:>10,}"
        f"{found.seconds:>9}  {variant.about}{mark}",
        flush=True,
    )
    if path and found.path:
        print(found.path)


def _row(found: Found) -> dict[str, object]:
    variant = found.variant
    return {
        "variant": variant.name,
        "about": variant.about,
        "switches": variant.switches,
        "expected": variant.expected,
        "result": found.result,
        "states": found.states,
        "seconds": found.seconds,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
