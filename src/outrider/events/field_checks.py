"""Checks compiled from type annotations: a value must fit its field and decode to an equal value.

A dataclass does not check its values itself. The check of a class is compiled once. It remembers
which combinations of value types were accepted, so the usual case costs one set lookup.
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
    no_json_form,
    too_deep,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

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


def compile_check(annotation: type) -> Check:
    """Compile the check of this annotation. The check raises Fault with the path of the field."""
    compiler = _Compiler()
    check = compiler.value_check(mi.type_info(annotation)) or (lambda _: None)
    return _WithDepth(check) if compiler.contains_itself else check


def field_names_only(cls: type) -> Any:
    """A type that decodes only the names of the fields, and refuses unknown names."""
    return _names_of(mi.type_info(cls), {})


def _names_of(declared: mi.Type, structs: dict[type, Any]) -> Any:
    match declared:
        case mi.DataclassType():
            return _names_of_class(declared, structs)
        case mi.ListType(item_type=item) | mi.SetType(item_type=item):
            names = _names_of(item, structs)
            return msgspec.Raw if names is msgspec.Raw else list[names]  # type: ignore[valid-type]
        case mi.DictType(value_type=value):
            names = _names_of(value, structs)
            return msgspec.Raw if names is msgspec.Raw else dict[str, names]  # type: ignore[valid-type]
        case mi.UnionType(types=types):
            inner = [_names_of(t, structs) for t in types if not isinstance(t, mi.NoneType)]
            return msgspec.Raw if len(inner) > 1 or inner[0] is msgspec.Raw else inner[0] | None
    return msgspec.Raw


def _names_of_class(declared: mi.DataclassType, structs: dict[type, Any]) -> Any:
    if declared.cls not in structs:
        structs[declared.cls] = Any  # names are not checked where a class contains itself
        members = [
            # Without a default, so that a payload without an id or a time is refused.
            (field.encode_name, _names_of(field.type, structs), *_default(field.name))
            for field in declared.fields
        ]
        structs[declared.cls] = msgspec.defstruct(
            declared.cls.__name__, members, forbid_unknown_fields=True, kw_only=True, gc=False
        )
    return structs[declared.cls]


def _default(field_name: str) -> tuple[None, ...]:
    return () if field_name in ("event_id", "occurred_at") else (None,)


def _accepts(declared: mi.Type, value_type: type) -> bool:
    """Whether a value of this Python type decodes to the same type where `declared` is expected."""
    if isinstance(declared, mi.UnionType):
        return any(_accepts(member, value_type) for member in declared.types)
    if isinstance(declared, mi.LiteralType):
        return any(type(value) is value_type for value in declared.values)
    if isinstance(declared, mi.DataclassType | mi.StructType | mi.EnumType):
        return value_type is declared.cls
    cls = _PYTHON_TYPES.get(type(declared), object)
    if value_type is bool and isinstance(declared, mi.IntType | mi.FloatType):
        return False
    if issubclass(value_type, datetime) and isinstance(declared, mi.DateType):
        return False
    return issubclass(value_type, cls)


def _expected(declared: mi.Type) -> str:
    if isinstance(declared, mi.UnionType):
        return " or ".join(_expected(member) for member in declared.types)
    if isinstance(declared, mi.LiteralType):
        return " or ".join(repr(value) for value in declared.values)
    cls = getattr(declared, "cls", None) or _PYTHON_TYPES.get(type(declared), object)
    return cls[0].__name__ if isinstance(cls, tuple) else cls.__name__


def _require(declared: mi.Type, value_type: type) -> None:
    if not _accepts(declared, value_type):
        name = "None" if value_type is type(None) else value_type.__name__
        raise Fault(f"expected {_expected(declared)}, got {name}")


class _Compiler:
    """Compiles type descriptions into checks. Compiles each class once: it may contain itself."""

    def __init__(self) -> None:
        self.contains_itself = False
        self._records: dict[type, _Record] = {}
        self._in_progress: set[type] = set()

    def value_check(self, declared: mi.Type) -> Check | None:
        """The check of the value itself, whose type is known to fit; None if none is needed."""
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
            case mi.CustomType(cls=cls):
                raise TypeError(no_json_form(cls).reason)
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

        def check_union(value: object) -> None:
            for member, check in checks:
                if _accepts(member, type(value)):
                    check(value)

        return check_union if checks else None

    def _dict(self, key: mi.Type, member_type: mi.Type) -> Check:
        # The keys of a plain `dict` are decoded as strings, so only strings are accepted.
        key = mi.StrType() if isinstance(key, mi.AnyType) else key
        items = _Items(member_type, self.value_check(member_type))

        def check_dict(value: dict[str, object]) -> None:
            for kind in set(map(type, value)):
                if not _accepts(key, kind):
                    raise Fault(f"key of type {kind.__name__}, expected {_expected(key)}")
            items(value.values(), steps=value)

        return check_dict


class _WithDepth:
    """Also limits the depth: instances of a class that contains itself can nest without end."""

    def __init__(self, check: Check) -> None:
        self.check = check

    def __call__(self, value: object) -> None:
        try:
            self.check(value)
            check_untyped(msgspec.to_builtins(value), DEFAULT_LIMITS, lossless=False)
        except RecursionError:
            raise too_deep(DEFAULT_LIMITS) from None


class _Items:
    """Checks a collection whose items all have one declared type."""

    def __init__(self, declared: mi.Type, check: Check | None) -> None:
        self.declared, self.check = declared, check

    def __call__(
        self, values: Collection[object], steps: Iterable[str | int] | None = None
    ) -> None:
        if not all(_accepts(self.declared, kind) for kind in set(map(type, values))) or self.check:
            for step, value in zip(steps or range(len(values)), values, strict=True):
                try:
                    _require(self.declared, type(value))
                    if self.check:
                        self.check(value)
                except Fault as fault:
                    raise fault.within(step) from None


class _Positions:
    """Checks a tuple that declares a type for each position."""

    def __init__(self, members: list[tuple[mi.Type, Check | None]]) -> None:
        self.members = members

    def __call__(self, values: tuple[object, ...]) -> None:
        if len(values) != len(self.members):
            raise Fault(f"expected {len(self.members)} members, got {len(values)}")
        for index, (value, (declared, check)) in enumerate(zip(values, self.members, strict=True)):
            try:
                _require(declared, type(value))
                if check:
                    check(value)
            except Fault as fault:
                raise fault.within(index) from None


class _Record:
    """Checks a dataclass: first the types of all fields at once, then values that need a check."""

    def __init__(self, fields: tuple[mi.Field, ...]) -> None:
        self.fields = {field.name: field.type for field in fields}
        self.checks: list[tuple[str, Check]] = []
        self._accepted_signatures: set[tuple[type, ...]] = set()
        names = list(self.fields)
        self._values: Callable[[object], tuple[object, ...]] = (
            attrgetter(*names) if len(names) > 1 else lambda o: tuple(getattr(o, n) for n in names)
        )

    def __call__(self, record: object) -> None:
        signature = tuple(map(type, self._values(record)))
        if signature not in self._accepted_signatures:
            self._check_types(signature)
        for name, check in self.checks:
            try:
                check(getattr(record, name))
            except Fault as fault:
                raise fault.within(name) from None

    def _check_types(self, signature: tuple[type, ...]) -> None:
        for (name, declared), value_type in zip(self.fields.items(), signature, strict=True):
            try:
                _require(declared, value_type)
            except Fault as fault:
                raise fault.within(name) from None
        if len(self._accepted_signatures) < _MAX_SIGNATURES:
            self._accepted_signatures.add(signature)


def _check_literal(value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise Fault(f"expected one of {', '.join(map(repr, allowed))}")
