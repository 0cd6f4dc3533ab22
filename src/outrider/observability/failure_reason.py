"""Failure reasons: which error it was and where it was raised; no values unless asked for."""

from __future__ import annotations

import re
import sys
import sysconfig
from itertools import islice
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Final, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

ErrorDetail = Literal["place", "message", "traceback"]
"""What a reason says of an error: its class and place; also its text; also all places."""

DETAILS: Final = get_args(ErrorDetail)
MAX_REASON_CHARS: Final = 8_000
_MAX_TEXT_CHARS: Final = 500
_MAX_CHAIN: Final = 8
_MAX_PLACES: Final = {"place": 3, "message": 3, "traceback": 60}
_SQLSTATE: Final = re.compile(r"[0-9A-Z]{5}")
_SQLITE_ERROR: Final = re.compile(r"SQLITE_[A-Z_]+")
_LIBRARIES: Final = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(__file__).parents[1]),
)
_LIBRARY_FOLDERS: Final = frozenset({"site-packages", "dist-packages"})


def failure_reason(error: BaseException, detail: ErrorDetail = "place") -> str:
    """One line: `KeyError at shop/orders.py:12 in book, shop/orders.py:7 in on_order`.

    The classes of the error and of its causes, the code of a database error, and the last lines
    of the caller's own code, innermost first. The text of an error may quote a payload, so it is
    left out unless `detail` asks for it.
    """
    chain = list(islice(_chain(error), _MAX_CHAIN))
    names = [_name(each, detail) for each in chain]
    unlike = [name for name, before in zip(names, [None, *names], strict=False) if name != before]
    code = next((code for each in chain if (code := _database_code(each))), None)
    places = list(_places(chain, detail))
    reason = " from ".join(unlike)
    reason += f" ({code})" if code else ""
    reason += f" at {', '.join(places)}" if places else ""
    return one_line(reason)[:MAX_REASON_CHARS]


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


def _name(error: BaseException, detail: ErrorDetail) -> str:
    name = type(error).__name__
    if isinstance(error, BaseExceptionGroup):
        name += f" of {len(error.exceptions)}"
    if detail == "place":
        return name
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - whatever a foreign error does, it has a reason
        text = "its text cannot be read"
    return f"{name}: {text[:_MAX_TEXT_CHARS]}" if text else name


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


def _places(chain: list[BaseException], detail: ErrorDetail) -> Iterator[str]:
    """The lines that the errors came through: those of the first cause first, the last one first.

    Only the caller's own code, unless there is none of it or `detail` asks for all.
    """
    lines = [
        (frame.f_code, line)
        for error in reversed(chain)
        for frame, line in reversed(list(walk_tb(error.__traceback__)))
    ]
    own = [(code, line) for code, line in lines if not _is_library(code.co_filename)]
    shown = lines if detail == "traceback" else own or lines[:1]
    return islice(dict.fromkeys(_place(*each) for each in shown), _MAX_PLACES[detail])


def _place(code: CodeType, line: int) -> str:
    return f"{_relative(code.co_filename)}:{line} in {code.co_qualname}"


def _is_library(file: str) -> bool:
    if file.startswith("<frozen"):
        return True
    return not _LIBRARY_FOLDERS.isdisjoint(Path(file).parts) or any(
        Path(file).is_relative_to(folder) for folder in _LIBRARIES
    )


def _relative(file: str) -> str:
    """Never an absolute path, which may tell the name of a person or of a machine."""
    if not Path(file).is_absolute():
        return file
    entries = (Path(entry).absolute() for entry in (*sys.path, str(Path.cwd())))
    above = [entry for entry in entries if Path(file).is_relative_to(entry)]
    if not above:
        return Path(file).name
    return Path(file).relative_to(max(above, key=lambda entry: len(entry.parts))).as_posix()
