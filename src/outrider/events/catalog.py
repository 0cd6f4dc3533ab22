"""The catalogue of event types: JSON Schema, AsyncAPI document and breaking changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from outrider.errors import ConfigurationError
from outrider.events.codec import EVENT_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from outrider.events.codec import EventType
    from outrider.events.strict_json import JsonObject

_REFERENCE: Final = "#/$defs/{name}"
_SCHEMA_FORMAT: Final = "application/schema+json;version=draft-2020-12"


def catalog(types: Iterable[EventType] = EVENT_TYPES) -> JsonObject:
    """Every event type with its version, its aggregate and the schema of its payload."""
    return {
        kind.name: {
            "version": kind.version,
            "aggregate": kind.aggregate,
            "upcasts_from": _first_readable(kind),
            "strict": kind.strict,
            "schema": _schema(kind),
        }
        for kind in sorted(types, key=lambda kind: kind.name)
    }


def asyncapi(entries: JsonObject, *, title: str, version: str = "1.0.0") -> JsonObject:
    """The catalogue as an AsyncAPI 3 document: one channel and one message per event type."""
    messages, channels, operations = {}, {}, {}
    for name, entry in entries.items():
        key = name.replace("/", "_").replace(".", "_").replace(":", "_")
        messages[key] = {
            "name": name,
            "contentType": "application/json",
            "payload": {"schemaFormat": _SCHEMA_FORMAT, "schema": entry["schema"]},
        }
        reference = {"$ref": f"#/components/messages/{key}"}
        channels[key] = {"address": name, "messages": {key: reference}}
        operations[f"send_{key}"] = {
            "action": "send",
            "channel": {"$ref": f"#/channels/{key}"},
        }
    return {
        "asyncapi": "3.0.0",
        "info": {"title": title, "version": version},
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages},
    }


@dataclass
class CatalogChanges:
    """What a new release breaks, and what only asks for an order of deployment."""

    breaks: list[str] = field(default_factory=list)
    """Changes that break the reading of old rows, or consumers of either release."""
    consumers_first: list[str] = field(default_factory=list)
    """Changes that consumers of the old release refuse: deploy consumers before producers."""


def compare(before: JsonObject, after: JsonObject) -> CatalogChanges:
    """The changes between two catalogues that matter to rows and consumers."""
    found = CatalogChanges()
    for name, old in before.items():
        new = after.get(name)
        if new is None:
            found.breaks.append(f"{name}: is gone; rows and consumers still speak of it")
        elif new["version"] == old["version"]:
            comparison = _Comparison(old, new)
            found.breaks += [f"{name}: {text}; give it a new version" for text in comparison.breaks]
            found.consumers_first += [f"{name}: {text}" for text in comparison.refused]
        else:
            _compare_versions(name, old, new, found)
    return found


def _compare_versions(name: str, old: JsonObject, new: JsonObject, found: CatalogChanges) -> None:
    version = old["version"]
    if new["version"] < version:
        found.breaks.append(f"{name}: went back from version {version} to {new['version']}")
    elif new["upcasts_from"] > version:
        step = f"@upcasts(…, version={version})"
        found.breaks.append(f"{name}: nothing reads version {version}; add {step}")
    else:
        refused = f"consumers that know version {version} refuse version {new['version']}"
        found.consumers_first.append(f"{name}: {refused}")


class _Comparison:
    """Compares two schemas of one version: fields, and what their values may be."""

    def __init__(self, old: JsonObject, new: JsonObject) -> None:
        self.breaks: list[str] = []
        self.refused: list[str] = []
        self._was, self._now = old["schema"], new["schema"]
        self._was_strict, self._is_strict = old.get("strict", False), new.get("strict", False)
        if old["aggregate"] != new["aggregate"]:
            self.breaks.append(f"its aggregate was {old['aggregate']} and is {new['aggregate']}")
        self._objects(self._was, self._now, "")
        # Each named definition is compared once, since a definition may refer to itself.
        olds, news = self._was.get("$defs", {}), self._now.get("$defs", {})
        for name in sorted(olds.keys() & news.keys()):
            self._fields(olds[name], news[name], name)

    def _objects(self, old: JsonObject, new: JsonObject, at: str) -> None:
        olds, news = old.get("properties", {}), new.get("properties", {})
        for name in sorted(olds.keys() - news.keys()):
            if self._is_strict:
                self.breaks.append(f"field {at}{name} is gone, and old rows have it")
            elif name in old.get("required", ()):
                self.breaks.append(f"field {at}{name} is gone, and old consumers need it")
        for name in sorted(news.keys() - olds.keys()):
            if name in new.get("required", ()):
                why = "is new and has no default, and old rows lack it"
                self.breaks.append(f"field {at}{name} {why}")
            elif self._was_strict:
                self.breaks.append(f"field {at}{name} is new, and old consumers are strict")
        for name in sorted(olds.keys() & news.keys()):
            self._fields(olds[name], news[name], f"{at}{name}")

    def _fields(self, old: JsonObject, new: JsonObject, at: str) -> None:
        if "$ref" in old and old == new:
            return
        old, new = _resolved(self._was, old), _resolved(self._now, new)
        if "enum" in old or "enum" in new:
            self._enums(set(old.get("enum", ())), set(new.get("enum", ())), at)
        elif self._kinds(_kind(self._was, old), _kind(self._now, new), at):
            pass
        elif "properties" in old and "properties" in new:
            self._objects(old, new, f"{at}.")
        elif "items" in old and "items" in new and isinstance(old["items"], dict):
            self._fields(old["items"], new["items"], f"{at}[]")

    def _enums(self, old: set[object], new: set[object], at: str) -> None:
        if lost := sorted(map(str, old - new)):
            self.breaks.append(f"field {at} no longer takes {', '.join(lost)}")
        if added := sorted(map(str, new - old)):
            self.refused.append(f"field {at} takes {', '.join(added)}, which old consumers refuse")

    def _kinds(self, old: set[str], new: set[str], at: str) -> bool:
        """Whether the types differ so that nothing below them can be compared."""
        was, now = " or ".join(sorted(old)), " or ".join(sorted(new))
        if old - new:
            self.breaks.append(f"field {at} was {was} and is {now}")
        elif new - old:
            self.refused.append(f"field {at} was {was} and is {now}, which old consumers refuse")
        return bool(old - new)


def _kind(document: JsonObject, schema: JsonObject) -> set[str]:
    """The types that a schema accepts, each with its format."""
    if "anyOf" in schema:
        return {k for part in schema["anyOf"] for k in _kind(document, _resolved(document, part))}
    kinds = schema.get("type", "anything")
    extra = f" ({schema['format']})" if "format" in schema else ""
    return {f"{kind}{extra}" for kind in ([kinds] if isinstance(kinds, str) else kinds)}


def _resolved(document: JsonObject, schema: object) -> JsonObject:
    while isinstance(schema, dict) and "$ref" in schema:
        schema = document["$defs"][schema["$ref"].rpartition("/")[2]]
    return schema if isinstance(schema, dict) else {}


def _first_readable(kind: EventType) -> int:
    """The oldest version that upcasters can bring up to the current version."""
    version = kind.version
    while EVENT_TYPES.has_upcaster(kind.name, version - 1):
        version -= 1
    return version


def _schema(kind: EventType) -> JsonObject:
    model_schema = getattr(kind.cls, "model_json_schema", None)
    if model_schema is not None:
        schema_of_model: JsonObject = model_schema(mode="serialization")
        return schema_of_model
    try:
        (schema,), defs = msgspec.json.schema_components([kind.cls], ref_template=_REFERENCE)
    except TypeError as error:
        raise ConfigurationError(f"{kind.name}: no JSON Schema: {error}") from None
    own = _resolved({"$defs": defs}, schema)
    others = {name: part for name, part in defs.items() if part is not own}
    if str(own.get("description", "")).startswith(f"{kind.cls.__name__}("):
        del own[
            "description"
        ]  # the default docstring of a dataclass, which only repeats its signature
    return {**own, **({"$defs": others} if others else {})}
