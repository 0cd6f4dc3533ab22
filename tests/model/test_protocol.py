"""The protocol's model: what is right holds in every reachable state, what is wrong is found."""

from __future__ import annotations

import re

import pytest

from model.search import HERE, search
from model.variants import VARIANTS, Variant
from tests.support.faults.scoreboard import Scoreboard
from tests.support.limits import FULL


@pytest.mark.fault(line="S-15")
@pytest.mark.parametrize(
    "variant", [each for each in VARIANTS if FULL or not each.long], ids=lambda each: each.name
)
def test_variant_holds_or_breaks_as_it_must(variant: Variant, scoreboard: Scoreboard) -> None:
    found = search(variant)

    assert found.result == variant.expected, found.path
    scoreboard.note("S-15", variants=1)


def test_every_switch_of_a_variant_is_one_of_its_model() -> None:
    files = {"lanes.pml": "switches.pml", "inbox.pml": "inbox.pml"}
    for variant in VARIANTS:
        text = (HERE / files[variant.file]).read_text()

        assert variant.switches.keys() <= set(re.findall(r"#ifndef (\w+)", text)), variant.name


def test_variants_that_the_guarantees_name_exist() -> None:
    text = (HERE.parent / "docs/guarantees.md").read_text()
    named = re.findall(r"`([A-H]\d?|(?:floor|prune|inbox)(?: \d)?)`", text)

    assert named
    assert set(named) <= {variant.name for variant in VARIANTS}
