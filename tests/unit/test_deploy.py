"""The files in deploy/: they parse, and they speak of metrics and flags that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, generate_latest

from outrider.cli.app import app
from outrider.observability.prometheus import PrometheusMetrics

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def known_metrics() -> set[str]:
    registry = CollectorRegistry()
    PrometheusMetrics(registry)
    text = generate_latest(registry).decode()
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    return names | {f"{name}_bucket" for name in names}


def expressions() -> list[str]:
    board = json.loads((DEPLOY / "grafana/dashboard.json").read_text())
    rules = yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())
    targets = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return targets + [rule["expr"] for rule in rules["groups"][0]["rules"]]


@pytest.mark.parametrize("expression", expressions())
def test_dashboard_and_alerts_ask_for_metrics_that_exist(expression: str) -> None:
    asked = set(re.findall(r"\b(?:outbox|inbox)_\w+", expression))

    assert asked
    assert asked <= known_metrics()


def test_alert_rules_satisfy_promtool() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not here: apt-get install prometheus")
    rules = str(DEPLOY / "prometheus/alerts.yaml")

    done = subprocess.run([promtool, "check", "rules", rules], capture_output=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", ["compose.yaml", "kubernetes/relay.yaml"])
def test_manifests_parse_and_their_commands_exist(file: str) -> None:
    text = (DEPLOY / file).read_text()

    documents = [document for document in yaml.safe_load_all(text) if document]

    assert documents
    for words in re.findall(r'(?:outrider"?,? "?|command: )(relay|schema)', text):
        assert CliRunner().invoke(app, [words, "--help"]).exit_code == 0
    assert "--health" in text


def test_compose_builds_its_image_from_the_clone() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    built = {name: each["build"] for name, each in services.items() if "build" in each}
    steps = (DEPLOY / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (.+) \S+$", steps, re.MULTILINE)
    (extras,) = re.findall(r"pip install .*'\.\[(.+)\]'", steps)
    sent = set((ROOT / ".dockerignore").read_text().splitlines())

    assert built.keys() == {"migrate", "relay"}
    for build in built.values():
        assert (DEPLOY / build["context"]).resolve() == ROOT
        assert (ROOT / build["dockerfile"]) == DEPLOY / "Dockerfile"
    for path in " ".join(copied).split():
        assert (ROOT / path).exists()
        assert f"!{path}" in sent, "of what .dockerignore leaves out nothing can be copied"
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
    assert {"pyproject.toml", PROJECT["readme"], *PROJECT["license-files"]} <= set(
        " ".join(copied).split()
    )


def test_unit_asks_for_what_the_relay_offers() -> None:
    unit = (DEPLOY / "systemd/outrider-relay.service").read_text()

    assert "Type=notify" in unit
    assert "outrider relay --health" in unit
