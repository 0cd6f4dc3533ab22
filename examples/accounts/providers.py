"""Who gets what: the container of a request, and of a handled event."""

from collections.abc import AsyncIterator

from dishka import Provider, Scope, from_context, provide
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from examples.accounts.account import AccountUnitOfWork, SignUpHandler
from examples.accounts.core import CoreUnitOfWork, CreateProfileOnAccountCreated
from examples.accounts.persistence import SqlAccountUnitOfWork, SqlCoreUnitOfWork


class AccountsProvider(Provider):
    """Everything over the one session of its scope; the dispatcher comes from Outrider."""

    scope = Scope.REQUEST
    engine = from_context(AsyncEngine, scope=Scope.APP)

    @provide
    async def session(self, engine: AsyncEngine) -> AsyncIterator[AsyncSession]:
        """What was not committed at the end of the scope is rolled back."""
        async with AsyncSession(engine, expire_on_commit=False) as session:
            yield session

    account_unit_of_work = provide(SqlAccountUnitOfWork, provides=AccountUnitOfWork)
    core_unit_of_work = provide(SqlCoreUnitOfWork, provides=CoreUnitOfWork)
    sign_up = provide(SignUpHandler)
    create_profile = provide(CreateProfileOnAccountCreated)
