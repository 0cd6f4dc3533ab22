"""Failure reasons: which error it was and where it was raised; no values unless asked for."""

from __future__ import annotations

import re
import sys
import sysconfig
from functools import lru_cache
from itertools import islice
from pathlib import Path
from traceback import walk_tb
from types import CoroutineType
from typing import TYPE_CHECKING, Final, Literal, get_args

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator
    from types import CodeType

    _Line = tuple[CodeType, int]

ErrorDetail = Literal["place", "message", "traceback"]
"""What a reason says of an error: its class and place; also its text; also all places."""

DETAILS: Final = get_args(ErrorDetail)
MAX_REASON_CHARS: Final = 8_000
_MAX_TEXT_CHARS: Final = 500
_MAX_CHAIN: Final = 8
_MAX_PLACES: Final = 3
_MAX_LINES: Final = 60
_SQLSTATE: Final = re.compile(r"[0-9A-Z]{5}")
_SQLITE_ERROR: Final = re.compile(r"SQLITE_[A-Z_]+")
_THIS_LIBRARY: Final = Path(__file__).parents[1]
_STANDARD: Final = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
_COMPILED: Final = (".pyx", ".pxd", ".pxi", ".c", ".cpp", ".so", ".pyd")
_TYPED_IN: Final = ("<string>", "<stdin>")
_PACKAGE_FOLDERS: Final = frozenset({"site-packages", "dist-packages"})


def failure_reason(error: BaseException, detail: ErrorDetail = "place") -> str:
    """One line: `KeyError at shop/orders.py:12 in book, shop/orders.py:7 in on_order`.

    The classes of the error and of its causes, the code of a database error, and the last lines
    of the caller's own code, innermost first. The text of an error may quote a payload, so it is
    left out unless `detail` asks for it. It comes after the place, which stays if it is cut.
    """
    chain = list(islice(_chain(error), _MAX_CHAIN))
    names = [_name(each) for each in chain]
    unlike = [name for name, before in zip(names, [None, *names], strict=False) if name != before]
    code = next((code for each in chain if (code := _database_code(each))), None)
    lines = [
        (frame.f_code, line)
        for each in reversed(chain)
        for frame, line in reversed(list(walk_tb(each.__traceback__)))
    ]
    places = _places(_own(lines) or lines[:1], _MAX_PLACES)
    reason = " from ".join(unlike)
    reason += f" ({code})" if code else ""
    reason += f" at {places}" if places else ""
    if detail != "place" and (texts := list(dict.fromkeys(filter(None, map(_text, chain))))):
        reason += f": {' from '.join(texts)}"
    if detail == "traceback" and lines:
        reason += f"; traceback: {_places(lines, _MAX_LINES)}"
    return one_line(reason)[:MAX_REASON_CHARS]


def waiting_place(task: asyncio.Task[object]) -> str:
    """Where a task waits now: `shop/orders.py:12 in book, shop/orders.py:7 in on_order`."""
    lines: list[_Line] = []
    waiting: object = task.get_coro()
    while isinstance(waiting, CoroutineType) and waiting.cr_frame is not None:
        lines.insert(0, (waiting.cr_frame.f_code, waiting.cr_frame.f_lineno))
        waiting = waiting.cr_await
    return one_line(_places(_own(lines) or lines[:1], _MAX_PLACES))


def one_line(text: str) -> str:
    """Escapes everything that could begin a new line, control a terminal or break a database."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, its cause, the cause of that, and so on."""
    seen = set[int]()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = _cause(following)


def _cause(error: BaseException) -> BaseException | None:
    if isinstance(error, BaseExceptionGroup):
        return error.exceptions[0]
    shown_context = None if error.__suppress_context__ else error.__context__
    return error.__cause__ or shown_context


def _name(error: BaseException) -> str:
    name = type(error).__name__
    if isinstance(error, BaseExceptionGroup):
        name += f" of {len(error.exceptions)}"
    return name


def _text(error: BaseException) -> str:
    try:
        return str(error)[:_MAX_TEXT_CHARS]
    except Exception:  # noqa: BLE001 - whatever a foreign error does, it has a reason
        return "its text cannot be read"


def _database_code(error: BaseException) -> str | None:
    """The SQLSTATE, or the name that SQLite gives to its errors."""
    for owner in (error, getattr(error, "orig", None)):
        for attribute in ("sqlstate", "pgcode"):
            code = getattr(owner, attribute, None)
            if isinstance(code, str) and _SQLSTATE.fullmatch(code):
                return f"SQLSTATE {code}"
        code = getattr(owner, "sqlite_errorname", None)
        if isinstance(code, str) and _SQLITE_ERROR.fullmatch(code):
            return code
    return None


def _places(lines: list[_Line], limit: int) -> str:
    return ", ".join(list(dict.fromkeys(_place(*each) for each in lines))[:limit])


def _own(lines: list[_Line]) -> list[_Line]:
    """Neither the standard library, nor this library, nor installed packages.

    The application itself may be an installed package: it is the one that this library called.
    """
    called = [each for each in lines if not _is_internal(each[0].co_filename)]
    own = [each for each in called if _package(each[0].co_filename) is None]
    if own or not called:
        return own
    application = _package(called[-1][0].co_filename)
    return [each for each in called if _package(each[0].co_filename) == application]


def _place(code: CodeType, line: int) -> str:
    return f"{_relative(code.co_filename)}:{line} in {code.co_qualname}"


@lru_cache(maxsize=1_000)
def _is_internal(file: str) -> bool:
    """Whether it belongs to this library or to the standard library, or was made by a compiler."""
    if file.startswith("<"):
        return file not in _TYPED_IN
    if file.endswith(_COMPILED):
        return True
    if Path(file).is_relative_to(_THIS_LIBRARY):
        return True
    return _package(file) is None and any(Path(file).is_relative_to(each) for each in _STANDARD)


def _package(file: str) -> str | None:
    """The name of the installed package that it belongs to, if it does."""
    parts = Path(file).parts
    inside = [n for n, part in enumerate(parts[:-1]) if part in _PACKAGE_FOLDERS]
    return parts[inside[-1] + 1] if inside else None


def _relative(file: str) -> str:
    """Never an absolute path, which may tell the name of a person or of a machine."""
    if not Path(file).is_absolute():
        return file
    entries = (Path(entry).absolute() for entry in (*sys.path, str(Path.cwd())))
    above = [entry for entry in entries if Path(file).is_relative_to(entry)]
    if not above:
        return Path(file).name
    return Path(file).relative_to(max(above, key=lambda entry: len(entry.parts))).as_posix()
