"""The catalogue of event types: JSON Schema, AsyncAPI document and breaking changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from outrider.errors import ConfigurationError
from outrider.events.codec import EVENT_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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


def breaking_changes(before: JsonObject, after: JsonObject) -> list[str]:
    """Changes between two catalogues that break the reading of old rows, or break consumers."""
    problems = []
    for name, old in before.items():
        new = after.get(name)
        if new is None:
            problems.append(f"{name}: is gone; rows and consumers still speak of it")
        elif new["version"] < old["version"]:
            problems.append(f"{name}: went back from version {old['version']} to {new['version']}")
        elif new["version"] > old["version"]:
            if new["upcasts_from"] > old["version"]:
                step = f"@upcasts(…, version={old['version']})"
                problems.append(f"{name}: nothing reads version {old['version']}; add {step}")
        else:
            problems += [f"{name}: {text}; give it a new version" for text in _changes(old, new)]
    return problems


def _changes(old: JsonObject, new: JsonObject) -> Iterator[str]:
    was, now = old["schema"], new["schema"]
    if old["aggregate"] != new["aggregate"]:
        yield f"its aggregate was {old['aggregate']} and is {new['aggregate']}"
    yield from _object_changes(was, now, was, now, "")
    # Each named definition is compared once, since a definition may refer to itself.
    olds, news = was.get("$defs", {}), now.get("$defs", {})
    for name in sorted(olds.keys() & news.keys()):
        yield from _field_changes(was, now, olds[name], news[name], name)


def _object_changes(
    was: JsonObject, now: JsonObject, old: JsonObject, new: JsonObject, at: str
) -> Iterator[str]:
    """Compares the objects `old` and `new`, which are parts of the documents `was` and `now`."""
    olds, news = old.get("properties", {}), new.get("properties", {})
    for field in olds.keys() - news.keys():
        yield f"field {at}{field} is gone, and old rows have it"
    for field in news.keys() - olds.keys():
        if field in new.get("required", ()):
            yield f"field {at}{field} is new and has no default, and old rows lack it"
    for field in olds.keys() & news.keys():
        yield from _field_changes(was, now, olds[field], news[field], f"{at}{field}")


def _field_changes(
    was: JsonObject, now: JsonObject, old: JsonObject, new: JsonObject, at: str
) -> Iterator[str]:
    if "$ref" in old and old == new:
        return
    old, new = _resolved(was, old), _resolved(now, new)
    if "enum" in old or "enum" in new:
        if lost := sorted(map(str, set(old.get("enum", ())) - set(new.get("enum", ())))):
            yield f"field {at} no longer takes {', '.join(lost)}"
        return
    if _kind(was, old) - _kind(now, new):
        kinds = " or ".join(sorted(_kind(was, old))), " or ".join(sorted(_kind(now, new)))
        yield f"field {at} was {kinds[0]} and is {kinds[1]}"
    elif "properties" in old and "properties" in new:
        yield from _object_changes(was, now, old, new, f"{at}.")
    elif "items" in old and "items" in new and isinstance(old["items"], dict):
        yield from _field_changes(was, now, old["items"], new["items"], f"{at}[]")


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
