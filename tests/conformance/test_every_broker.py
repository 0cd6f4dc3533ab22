"""Every publisher and source of the library runs its suite, and all brokers have one shape."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass, fields
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from outrider import ConfigurationError

BROKERS = Path(__file__).parents[2] / "src/outrider/brokers"
SHARED = {"__init__", "__pycache__", "dead_letter_headers", "network_errors"}
PLACES = [place for place in sorted(BROKERS.iterdir()) if place.stem not in SHARED]
TREES = [ast.parse(path.read_text()) for path in sorted(Path(__file__).parent.glob("test_*.py"))]
SUITE_OF = {"publish_all": "PublisherSuite", "dead_letter": "SourceSuite"}


def adapters(place: Path = BROKERS) -> list[tuple[str, str]]:
    """Every class that has a port's telling method, with the suite it must pass."""
    paths = sorted(place.rglob("*.py")) if place.is_dir() else [place]
    return [
        (node.name, SUITE_OF[method])
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        for method in SUITE_OF.keys() & {getattr(item, "name", "") for item in node.body}
    ]


def runs(tree: ast.Module, adapter: str, suite: str) -> bool:
    """Whether a test module uses the adapter and has a class of the suite."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    bases = {
        ast.unparse(base)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test")
        for base in node.bases
    }
    return adapter in names and suite in bases


@pytest.mark.parametrize(("adapter", "suite"), adapters())
def test_adapter_runs_its_suite(adapter: str, suite: str) -> None:
    proved = any(runs(tree, adapter, suite) for tree in TREES)

    assert proved, f"{adapter} needs a class of {suite}"


@pytest.mark.parametrize("broker", PLACES, ids=lambda place: place.stem)
def test_broker_has_a_publisher(broker: Path) -> None:
    assert "PublisherSuite" in dict(adapters(broker)).values()


MODULES = {"config", "connection", "messages", "publisher", "source", "dead_letters", "durability"}
KEYWORDS = ["group", "subject", "subjects", "topology", "ordered", "dead_letters", "config"]
TLS = ["ca_file", "client_certificate", "client_key", "ssl_context"]
IN_EVERY_CONFIG = {
    *("connect_timeout", "publish_timeout", "max_message_size", "cloudevents_source"),
    *TLS,
}
OTHER_NAMES = {
    *("source", "lease", "session_timeout", "call_timeout", "replication", "timeout"),
    *("max_size", "max_bytes", "cafile", "ca_cert", "certificate"),
}


@dataclass(frozen=True)
class Broker:
    """What a package must offer."""

    package: str
    name: str
    publish_to: str
    receive_from: str
    publisher_keywords: list[str]
    source_keywords: list[str]
    others: tuple[str, ...] = ()

    def module(self, name: str = "") -> ModuleType:
        return import_module(f"outrider.brokers.{self.package}{name and '.' + name}")

    def exported(self, suffix: str) -> Any:
        return getattr(self.module(), self.name + suffix)

    @property
    def folder(self) -> Path:
        return BROKERS / self.package


ALL = [
    Broker(
        *("rabbitmq", "RabbitMQ", "exchange", "queue"),
        ["topology", "config"],
        ["topology", "ordered", "dead_letters", "config"],
        ("Binding", "Exchange", "Queue", "Topology"),
    ),
    Broker(
        *("kafka", "Kafka", "topic", "topic"),
        ["config"],
        ["group", "dead_letters", "config"],
    ),
    Broker(
        *("nats", "Nats", "stream", "stream"),
        ["subject", "config"],
        ["group", "subjects", "ordered", "dead_letters", "config"],
    ),
    Broker(
        *("redis", "Redis", "stream", "stream"),
        ["config"],
        ["group", "ordered", "dead_letters", "config"],
        ("RedisEventBus",),
    ),
]
every_broker = pytest.mark.parametrize("broker", ALL, ids=lambda broker: broker.package)


def test_every_package_is_described_here() -> None:
    assert {broker.folder for broker in ALL} == {place for place in PLACES if place.is_dir()}


@every_broker
def test_broker_has_the_seven_files(broker: Broker) -> None:
    assert {path.stem for path in broker.folder.glob("*.py")} >= MODULES


@every_broker
def test_package_exports_config_publisher_and_source(broker: Broker) -> None:
    expected = {broker.name + suffix for suffix in ("Config", "Publisher", "Source")}

    assert set(broker.module().__all__) == expected | set(broker.others)


@every_broker
@pytest.mark.parametrize("side", ["Publisher", "Source"])
def test_constructor_takes_url_destination_and_keywords_in_the_same_order(
    broker: Broker, side: str
) -> None:
    is_publisher = side == "Publisher"
    parameters = list(inspect.signature(broker.exported(side)).parameters.values())
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]

    destination = broker.publish_to if is_publisher else broker.receive_from
    assert positional == ["url", destination]
    assert keywords == (broker.publisher_keywords if is_publisher else broker.source_keywords)
    assert keywords == sorted(keywords, key=KEYWORDS.index)
    assert parameters[-1].annotation == f"{broker.name}Config | None"
    assert [
        p.name for p in parameters if p.kind is p.VAR_KEYWORD or p.kind is p.VAR_POSITIONAL
    ] == []


@every_broker
def test_settings_of_the_same_meaning_have_the_same_name_and_place(broker: Broker) -> None:
    config = broker.exported("Config")
    names = [each.name for each in fields(config)]

    assert config.__dataclass_params__.frozen
    assert all(each.kw_only for each in fields(config))
    assert set(names) >= IN_EVERY_CONFIG
    assert set(names) & OTHER_NAMES == set()
    assert names[:2] == ["connect_timeout", "publish_timeout"]
    assert names[-5:] == ["cloudevents_source", *TLS]


def test_settings_of_the_same_name_are_described_by_the_same_sentence() -> None:
    sentences: dict[str, set[str]] = {}
    for broker in ALL:
        for name, text in field_docstrings(broker).items():
            sentences.setdefault(name, set()).add(text.partition(". ")[0].rstrip("."))
    alike = {*IN_EVERY_CONFIG, "heartbeat", "prefetch"} - {"max_message_size"}

    assert [sentences[name] for name in sorted(alike) if len(sentences[name]) > 1] == []


def field_docstrings(broker: Broker) -> dict[str, str]:
    """By the name of the field."""
    tree = ast.parse((broker.folder / "config.py").read_text())
    [config] = [
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == f"{broker.name}Config"
    ]
    found = {}
    for field, text in zip(config.body, config.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            found[ast.unparse(field.target)] = re.sub(r"\s+", " ", ast.literal_eval(text.value))
    return found


@every_broker
def test_every_setting_has_a_sentence(broker: Broker) -> None:
    assert set(field_docstrings(broker)) == {
        each.name for each in fields(broker.exported("Config"))
    }


@every_broker
def test_number_out_of_range_is_refused_by_its_name(broker: Broker) -> None:
    config = broker.exported("Config")
    below = {"int": -1, "timedelta": timedelta(seconds=-1)}
    kinds = {each.name: str(each.type).removesuffix(" | None") for each in fields(config)}
    numbers = {name: below[kind] for name, kind in kinds.items() if kind in below}

    for name, value in numbers.items():
        with pytest.raises(ConfigurationError, match=rf"{broker.name}Config: .*\b{name} must"):
            config(**{name: value})
    assert set(numbers) >= {"connect_timeout", "publish_timeout", "max_message_size"}


@every_broker
def test_one_function_translates_errors(broker: Broker) -> None:
    translators = [
        (path.stem, node.name)
        for path in broker.folder.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and "translate" in node.name
    ]
    signature = inspect.signature(broker.module("connection").translate)
    error, address, *others = signature.parameters.values()

    assert translators == [("connection", "translate")]
    assert (error.name, error.annotation) == ("error", "Exception")
    assert (address.name, address.annotation) == ("address", "object")
    assert all(other.default is not other.empty for other in others)
    assert signature.return_annotation == "OutriderError"


@every_broker
def test_dead_letters_are_written_with_the_shared_headers(broker: Broker) -> None:
    module = broker.module("dead_letters")
    shared = import_module("outrider.brokers.dead_letter_headers")

    assert inspect.iscoroutinefunction(module.DeadLetters.write)
    assert list(inspect.signature(module.DeadLetters.write).parameters)[-1] == "reason"
    assert module.dead_letter_headers is shared.dead_letter_headers


@every_broker
def test_nothing_outside_imports_deeper_than_the_package(broker: Broker) -> None:
    deeper = re.compile(rf"^\s*(?:from|import) outrider\.brokers\.{broker.package}\.", re.MULTILINE)
    source = BROKERS.parent

    found = [
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if broker.folder not in path.parents and deeper.search(path.read_text())
    ]

    assert found == []
