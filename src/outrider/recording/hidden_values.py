"""Hidden values: the error of a failed INSERT never quotes the row, whatever the engine."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy.exc import StatementError

from outrider.store.schema.problems import is_missing_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outrider.store.schema.names import OutboxNames


@contextmanager
def hidden_values(names: OutboxNames) -> Iterator[None]:
    """Takes payloads out of the errors of SQLAlchemy and of the driver; their classes stay.

    If the table is missing, the error tells the cure."""
    try:
        yield
    except StatementError as error:
        error.params, error.hide_parameters = None, True
        _keep_first_lines(error)
        if is_missing_table(error):
            error.args = (f"{error.args[0]}; {names.cure()}",)
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
