"""The Account context: who may sign up, and what it tells the others.

Nothing in here knows of a database, an outbox or a relay.
"""

import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol
from uuid import UUID, uuid4

from outrider import DomainEvent, Handlers

log = logging.getLogger(__name__)
handlers = Handlers()


class AccountRole(StrEnum):
    USER = "user"
    ADMIN = "admin"


@dataclass
class Account:
    id: UUID
    email: str
    role: AccountRole


@dataclass(frozen=True, kw_only=True)
class AccountCreated(DomainEvent):
    """All that another context needs to know, so that nobody has to ask back."""

    account_id: UUID
    email: str
    display_name: str
    role: AccountRole


class EmailTaken(Exception):
    """There is an account with this address."""


class AccountUnitOfWork(Protocol):
    async def add(self, account: Account) -> None:
        """Raises EmailTaken."""

    async def get(self, account_id: UUID) -> Account | None: ...

    async def commit(self) -> None: ...


class EventDispatcher(Protocol):
    """Whether handlers run at once or later, here or elsewhere, no use case knows."""

    def dispatch(self, events: Sequence[DomainEvent]) -> Awaitable[object]: ...


class SignUpHandler:
    def __init__(self, unit_of_work: AccountUnitOfWork, events: EventDispatcher) -> None:
        self._unit_of_work, self._events = unit_of_work, events

    async def handle(self, email: str, display_name: str) -> Account:
        account = Account(id=uuid4(), email=email, role=AccountRole.USER)
        await self._unit_of_work.add(account)
        created = AccountCreated(
            account_id=account.id, email=email, display_name=display_name, role=account.role
        )
        # Before the commit: account and event are there together, or not at all.
        await self._events.dispatch([created])
        await self._unit_of_work.commit()
        return account


@handlers.handles(AccountCreated)
class LogAccountCreated:
    """Says which account, and never whose: logs are read by many."""

    async def handle(self, event: AccountCreated) -> None:
        log.info("account %s was created", event.account_id)
