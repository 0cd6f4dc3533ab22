"""Failure reasons: a person finds the line that failed, and nobody finds a value."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import IntegrityError

from outrider.observability.failure_reason import (
    MAX_REASON_CHARS,
    ErrorDetail,
    failure_reason,
)
from outrider.store.schema.tables import MAX_ATTEMPT_CHARS

CANARY = "canary-7b1"


def lookup() -> str:
    return {"known": "x"}[CANARY]


def book() -> str:
    return lookup()


def caught(work: object) -> BaseException:
    assert callable(work)
    try:
        work()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if text in line)


def test_reason_names_the_class_and_the_last_lines_of_the_callers_code() -> None:
    reason = failure_reason(caught(book))

    first, second, third = reason.removeprefix("KeyError at ").split(", ")
    assert first.endswith(f"test_failure_reason.py:{line_of('[CANARY]')} in lookup")
    assert second.endswith(f"test_failure_reason.py:{line_of('return lookup()')} in book")
    assert third.endswith(" in caught")


def test_reason_leaves_out_libraries_unless_nothing_else_is_there() -> None:
    inside = caught(lambda: json.loads("{"))
    alone = caught(lambda: json.loads("{"))
    while alone.__traceback__ is not None and alone.__traceback__.tb_next is not None:
        alone.__traceback__ = alone.__traceback__.tb_next

    assert "json" not in failure_reason(inside).partition(" at ")[2].replace("test_", "")
    assert " at json/decoder.py:" in failure_reason(alone)


def test_reason_says_nothing_of_values_and_of_absolute_paths() -> None:
    def fails() -> None:
        try:
            book()
        except KeyError as error:
            raise ValueError(CANARY) from error

    reason = failure_reason(caught(fails))

    assert reason.startswith("ValueError from KeyError at ")
    assert CANARY not in reason
    assert str(Path.cwd()) not in reason
    assert str(Path.home()) not in reason.replace("~", "")


def test_reason_shows_only_the_name_of_a_file_outside_every_import_path() -> None:
    code = compile("def fails():\n    raise KeyError(1)\n", "/srv/elsewhere/job.py", "exec")
    names: dict[str, object] = {}
    exec(code, names)  # noqa: S102 - a file that is on no import path

    reason = failure_reason(caught(names["fails"]))

    assert reason.startswith("KeyError at job.py:2 in fails, ")


def test_application_that_is_installed_as_a_package_counts_as_the_callers_code() -> None:
    def made(file: str, code: str, **names: object) -> object:
        exec(compile(code, file, "exec"), names)  # noqa: S102 - files that need not exist
        return names["call"]

    inside = made("/venv/site-packages/driver/wire.py", "def call():\n    raise KeyError(1)")
    shop = made("/venv/site-packages/shop/orders.py", "def call():\n    inside()", inside=inside)
    error = caught(shop)
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next  # without this test, which is no package

    assert failure_reason(error) == "KeyError at orders.py:2 in call"


class DriverError(Exception):
    sqlstate = "23505"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DriverError(CANARY), "DriverError (SQLSTATE 23505)"),
        (IntegrityError(CANARY, {}, DriverError(CANARY)), "IntegrityError (SQLSTATE 23505)"),
    ],
    ids=["driver", "sqlalchemy"],
)
def test_reason_has_the_sqlstate_of_every_layer(error: Exception, code: str) -> None:
    assert failure_reason(error) == code


def test_reason_has_the_sqlstate_of_a_cause() -> None:
    def fails() -> None:
        try:
            raise DriverError(CANARY)
        except DriverError as error:
            raise ValueError from error

    assert failure_reason(caught(fails)).startswith("ValueError from DriverError (SQLSTATE 23505)")


def test_reason_has_the_name_of_an_error_of_sqlite() -> None:
    with sqlite3.connect(":memory:") as db:
        db.execute("CREATE TABLE t (a UNIQUE)")
        db.execute("INSERT INTO t VALUES (1)")
        error = caught(lambda: db.execute("INSERT INTO t VALUES (1)"))

    assert failure_reason(error).startswith("IntegrityError (SQLITE_CONSTRAINT_UNIQUE) at ")


def test_reason_of_a_group_is_that_of_its_first_error() -> None:
    group = ExceptionGroup(CANARY, [KeyError(CANARY), ValueError(CANARY)])

    assert failure_reason(group) == "ExceptionGroup of 2 from KeyError"


def test_message_and_traceback_are_told_on_request() -> None:
    error = caught(lambda: json.loads("{" + CANARY))

    message, trace = failure_reason(error, "message"), failure_reason(error, "traceback")

    assert message.startswith("JSONDecodeError at ")
    assert ": Expecting property name" in message
    assert "json/decoder.py" not in message
    assert "json/decoder.py" in trace
    assert "test_failure_reason.py" in trace


@pytest.mark.parametrize("detail", ["message", "traceback"])
def test_place_comes_before_the_text_so_that_a_cut_reason_keeps_it(detail: ErrorDetail) -> None:
    def fails() -> None:
        raise ValueError("x" * 1_000)

    cut = failure_reason(caught(fails), detail)[:MAX_ATTEMPT_CHARS]

    assert f"test_failure_reason.py:{line_of('* 1_000')} in " in cut
    assert "xxx" in cut


def test_compiled_file_is_never_the_callers_code() -> None:
    names: dict[str, object] = {}
    source = "def fails():\n    raise KeyError(1)\n"
    exec(compile(source, "driver/protocol.pyx", "exec"), names)  # noqa: S102 - a file of a driver

    assert "protocol.pyx" not in failure_reason(caught(names["fails"]))


def test_chain_that_leads_back_to_itself_has_an_end() -> None:
    first, second = KeyError(), ValueError()
    first.__cause__, second.__cause__ = second, first

    assert failure_reason(first) == "KeyError from ValueError"


def test_error_without_a_readable_text_has_a_reason() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError(CANARY)

    assert failure_reason(Mute(), "message") == "Mute: its text cannot be read"


@given(st.text())
def test_reason_is_one_line_that_every_database_stores(text: str) -> None:
    reason = failure_reason(ValueError(text), "message")

    assert reason.isprintable()
    reason.encode()


def test_reason_has_a_limit() -> None:
    def sinks(depth: int) -> None:
        if depth:
            sinks(depth - 1)
        raise ValueError("x" * 100_000)

    assert len(failure_reason(caught(lambda: sinks(200)), "traceback")) <= MAX_REASON_CHARS
