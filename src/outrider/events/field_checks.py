"""Checks made from type annotations: does a value fit its field, and will it come back equal?

A dataclass does not look at what it is given. The check of a class is compiled once; afterwards
the usual case costs one set lookup: "this combination of types was fine before".
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec
import msgspec.inspect as mi

from outrider.events.strict_json import (
    DEFAULT_LIMITS,
    Fault,
    check_decimal,
    check_float,
    check_time,
    check_untyped,
    too_deep,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Check = Callable[[Any], None]

_PYTHON_TYPES: Final[dict[type[mi.Type], type | tuple[type, ...]]] = {
    mi.IntType: int,
    mi.FloatType: (float, int),
    mi.StrType: str,
    mi.BoolType: bool,
    mi.NoneType: type(None),
    mi.UUIDType: UUID,
    mi.DecimalType: Decimal,
    mi.DateTimeType: datetime,
    mi.DateType: date,
    mi.TimeType: time,
    mi.TimeDeltaType: timedelta,
    mi.BytesType: bytes,
    mi.ListType: list,
    mi.SetType: set,
    mi.FrozenSetType: frozenset,
    mi.VarTupleType: tuple,
    mi.TupleType: tuple,
    mi.DictType: dict,
    mi.TypedDictType: dict,
}
_SCALAR_CHECKS: Final[dict[type[mi.Type], Check]] = {
    mi.FloatType: check_float,
    mi.DecimalType: check_decimal,
    mi.DateTimeType: check_time,
    mi.AnyType: lambda value: check_untyped(value, DEFAULT_LIMITS, lossless=True),
}
_MAX_SIGNATURES: Final = 256


def compile_check(annotation: Any) -> Check:
    """The check for values of this annotation; raises Fault with the field's path."""
    compiler = _Compiler()
    check = compiler.value_check(mi.type_info(annotation)) or (lambda _: None)
    return _WithDepth(check) if compiler.contains_itself else check


def field_names_only(cls: type) -> Any:
    """A type that reads nothing but the names of the fields, and refuses unknown ones."""
    return _names_of(mi.type_info(cls), {})


def _names_of(declared: mi.Type, known: dict[type, Any]) -> Any:
    match declared:
        case mi.DataclassType():
            return _names_of_class(declared, known)
        case mi.ListType(item_type=item) | mi.SetType(item_type=item):
            names = _names_of(item, known)
            return msgspec.Raw if names is msgspec.Raw else list[names]  # type: ignore[valid-type]
        case mi.DictType(value_type=value):
            names = _names_of(value, known)
            return msgspec.Raw if names is msgspec.Raw else dict[str, names]  # type: ignore[valid-type]
        case mi.UnionType(types=types):
            inner = [_names_of(t, known) for t in types if not isinstance(t, mi.NoneType)]
            return msgspec.Raw if len(inner) > 1 or inner[0] is msgspec.Raw else inner[0] | None
    return msgspec.Raw


def _names_of_class(declared: mi.DataclassType, known: dict[type, Any]) -> Any:
    if declared.cls not in known:
        known[declared.cls] = Any  # a class inside itself is looked at on its first level only
        members = [
            # Defaults make a new event's id and time; a stored event must bring its own.
            (field.encode_name, _names_of(field.type, known), *_default(field.name))
            for field in declared.fields
        ]
        known[declared.cls] = msgspec.defstruct(
            declared.cls.__name__, members, forbid_unknown_fields=True, kw_only=True, gc=False
        )
    return known[declared.cls]


def _default(field_name: str) -> tuple[None, ...]:
    return () if field_name in ("event_id", "occurred_at") else (None,)


def _accepts(declared: mi.Type, found: type) -> bool:
    """Is a value of this Python type read back as itself where `declared` is expected?"""
    if isinstance(declared, mi.UnionType):
        return any(_accepts(member, found) for member in declared.types)
    if isinstance(declared, mi.LiteralType):
        return any(type(value) is found for value in declared.values)
    if isinstance(declared, mi.DataclassType | mi.StructType | mi.EnumType):
        return found is declared.cls
    cls = _PYTHON_TYPES.get(type(declared), object)
    if found is bool and isinstance(declared, mi.IntType | mi.FloatType):
        return False
    if issubclass(found, datetime) and isinstance(declared, mi.DateType):
        return False
    return issubclass(found, cls)


def _expected(declared: mi.Type) -> str:
    if isinstance(declared, mi.UnionType):
        return " or ".join(_expected(member) for member in declared.types)
    if isinstance(declared, mi.LiteralType):
        return " or ".join(repr(value) for value in declared.values)
    cls = getattr(declared, "cls", None) or _PYTHON_TYPES.get(type(declared), object)
    return cls[0].__name__ if isinstance(cls, tuple) else cls.__name__


def _require(declared: mi.Type, found: type) -> None:
    if not _accepts(declared, found):
        name = "None" if found is type(None) else found.__name__
        raise Fault(f"expected {_expected(declared)}, got {name}")


class _Compiler:
    """Turns type descriptions into checks; remembers classes, which may contain themselves."""

    def __init__(self) -> None:
        self.contains_itself = False
        self._records: dict[type, _Record] = {}
        self._in_progress: set[type] = set()

    def value_check(self, declared: mi.Type) -> Check | None:
        """What must be looked at in the value itself once its type is known to fit."""
        if check := _SCALAR_CHECKS.get(type(declared)):
            return check
        match declared:
            case mi.LiteralType(values=values):
                return lambda value: _check_literal(value, values)
            case mi.UnionType(types=types):
                return self._union(types)
            case mi.ListType() | mi.VarTupleType() | mi.SetType() | mi.FrozenSetType():
                return _Items(declared.item_type, self.value_check(declared.item_type))
            case mi.TupleType(item_types=items):
                return _Positions([(item, self.value_check(item)) for item in items])
            case mi.DictType(key_type=key, value_type=value):
                return self._dict(key, value)
            case mi.DataclassType() | mi.StructType():
                return self._record(declared)
        return None

    def _record(self, declared: mi.DataclassType | mi.StructType) -> _Record:
        if declared.cls in self._records:
            self.contains_itself |= declared.cls in self._in_progress
            return self._records[declared.cls]
        record = self._records[declared.cls] = _Record(declared.fields)
        self._in_progress.add(declared.cls)
        record.checks = [
            (field.name, check)
            for field in declared.fields
            if (check := self.value_check(field.type))
        ]
        self._in_progress.remove(declared.cls)
        return record

    def _union(self, members: tuple[mi.Type, ...]) -> Check | None:
        checks = [(member, check) for member in members if (check := self.value_check(member))]

        def check_union(value: Any) -> None:
            for member, check in checks:
                if _accepts(member, type(value)):
                    check(value)

        return check_union if checks else None

    def _dict(self, key: mi.Type, value: mi.Type) -> Check:
        # Keys of an undescribed dict come back as strings, so nothing else may go in.
        key = mi.StrType() if isinstance(key, mi.AnyType) else key
        values = _Items(value, self.value_check(value))

        def check_dict(found: dict[Any, Any]) -> None:
            for kind in set(map(type, found)):
                if not _accepts(key, kind):
                    raise Fault(f"key of type {kind.__name__}, expected {_expected(key)}")
            values(found.values(), steps=found)

        return check_dict


class _WithDepth:
    """Classes that contain themselves can be nested without end, so their depth is measured."""

    def __init__(self, check: Check) -> None:
        self.check = check

    def __call__(self, value: Any) -> None:
        try:
            self.check(value)
            check_untyped(msgspec.to_builtins(value), DEFAULT_LIMITS, lossless=False)
        except RecursionError:
            raise too_deep(DEFAULT_LIMITS) from None


class _Items:
    """All members of a collection are of one declared type."""

    def __init__(self, declared: mi.Type, check: Check | None) -> None:
        self.declared, self.check = declared, check

    def __call__(self, found: Any, steps: Any = None) -> None:
        if not all(_accepts(self.declared, kind) for kind in set(map(type, found))) or self.check:
            for step, value in zip(steps or range(len(found)), found, strict=True):
                try:
                    _require(self.declared, type(value))
                    if self.check:
                        self.check(value)
                except Fault as fault:
                    raise fault.within(step) from None


class _Positions:
    """A tuple with one declared type per place."""

    def __init__(self, members: list[tuple[mi.Type, Check | None]]) -> None:
        self.members = members

    def __call__(self, found: tuple[Any, ...]) -> None:
        if len(found) != len(self.members):
            raise Fault(f"expected {len(self.members)} members, got {len(found)}")
        for index, (value, (declared, check)) in enumerate(zip(found, self.members, strict=True)):
            try:
                _require(declared, type(value))
                if check:
                    check(value)
            except Fault as fault:
                raise fault.within(index) from None


class _Record:
    """A dataclass: first the types of all fields at once, then the values that need a look."""

    def __init__(self, fields: tuple[mi.Field, ...]) -> None:
        self.fields = {field.name: field.type for field in fields}
        self.checks: list[tuple[str, Check]] = []
        self._seen: set[tuple[type, ...]] = set()
        names = list(self.fields)
        self._values: Callable[[Any], tuple[Any, ...]] = (
            attrgetter(*names) if len(names) > 1 else lambda o: tuple(getattr(o, n) for n in names)
        )

    def __call__(self, record: Any) -> None:
        signature = tuple(map(type, self._values(record)))
        if signature not in self._seen:
            self._accept(signature)
        for name, check in self.checks:
            try:
                check(getattr(record, name))
            except Fault as fault:
                raise fault.within(name) from None

    def _accept(self, signature: tuple[type, ...]) -> None:
        for (name, declared), found in zip(self.fields.items(), signature, strict=True):
            try:
                _require(declared, found)
            except Fault as fault:
                raise fault.within(name) from None
        if len(self._seen) < _MAX_SIGNATURES:
            self._seen.add(signature)


def _check_literal(value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise Fault(f"expected one of {', '.join(map(repr, allowed))}")
