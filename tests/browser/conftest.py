"""The databases of the integration tests, for the browser as well."""

from tests.integration.conftest import database

__all__ = ["database"]
