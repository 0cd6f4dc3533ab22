"""The Core context: profiles, which follow from what the Account context tells."""

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from examples.accounts.account import AccountCreated
from outrider import Handlers

handlers = Handlers()


@dataclass
class Profile:
    account_id: UUID
    display_name: str


class CoreUnitOfWork(Protocol):
    def add(self, profile: Profile) -> None: ...

    async def get(self, account_id: UUID) -> Profile | None: ...

    async def commit(self) -> None: ...


@handlers.handles(AccountCreated)
class CreateProfileOnAccountCreated:
    """Takes effect once, however often the event comes: the inbox's mark is in the same
    transaction, so this commit is the mark's commit too."""

    def __init__(self, unit_of_work: CoreUnitOfWork) -> None:
        self._unit_of_work = unit_of_work

    async def handle(self, event: AccountCreated) -> None:
        self._unit_of_work.add(Profile(event.account_id, event.display_name))
        await self._unit_of_work.commit()
