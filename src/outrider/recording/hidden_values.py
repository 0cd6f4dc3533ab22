"""Hidden values: the error of a failed INSERT never quotes the row, whatever the engine."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy.exc import StatementError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def hidden_values() -> Iterator[None]:
    """Takes payloads out of the errors of SQLAlchemy and of the driver; their classes stay."""
    try:
        yield
    except StatementError as error:
        error.params, error.hide_parameters = None, True
        _keep_first_lines(error)
        raise


def _keep_first_lines(error: BaseException | None) -> None:
    """Only what was raised as its cause: the context may be an error of the caller."""
    while error is not None:
        # PostgreSQL quotes the row in the lines DETAIL and CONTEXT, below the message.
        error.args = tuple(
            value.partition("\n")[0] if isinstance(value, str) else value for value in error.args
        )
        for name in ("detail", "context"):  # asyncpg keeps these lines apart
            if isinstance(getattr(error, name, None), str):
                setattr(error, name, None)
        error = error.__cause__
