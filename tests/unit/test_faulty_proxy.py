"""The faulty link: an echo server behind it, and what becomes of the bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from outrider.testing.faulty_proxy import FaultyProxy
from tests.support.until import until

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]
MAX_WAIT_S = 30


class Echo:
    """A server that sends everything back, and what it was sent."""

    def __init__(self) -> None:
        self.heard = b""
        self.ended = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1_000):
                self.heard += data
                writer.write(data)
        except ConnectionError:
            pass
        finally:
            self.ended += 1
            writer.close()


@pytest.fixture
async def echo() -> Echo:
    return Echo()


@pytest.fixture
async def link(echo: Echo) -> AsyncIterator[FaultyProxy]:
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    async with FaultyProxy("127.0.0.1", server.sockets[0].getsockname()[1]) as link:
        yield link
    assert link.connections == 0
    server.close()
    await server.wait_closed()


@asynccontextmanager
async def connected(link: FaultyProxy) -> AsyncIterator[Pair]:
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def said(pair: Pair, text: bytes) -> bytes:
    pair[1].write(text)
    return await pair[0].readexactly(len(text))


async def is_cut(pair: Pair) -> bool:
    """Whether the connection ends without another byte."""
    try:
        async with asyncio.timeout(MAX_WAIT_S):
            return await pair[0].read(1) == b""
    except ConnectionResetError:
        return True


async def nothing_comes(pair: Pair, within: float = 0.2) -> bool:
    try:
        await asyncio.wait_for(pair[0].read(1), within)
    except TimeoutError:
        return True
    return False


async def test_everything_passes_until_told_otherwise(link: FaultyProxy, echo: Echo) -> None:
    async with connected(link) as pair:
        assert await said(pair, b"hello") == b"hello"

        pair[1].write(b"x" * 1_000_000)
        pair[1].write_eof()
        assert len(await pair[0].read(-1)) == 1_000_000

    await until(lambda: link.connections == 0)
    assert echo.ended == 1


async def test_black_hole_takes_everything_and_says_nothing(link: FaultyProxy, echo: Echo) -> None:
    async with connected(link) as pair:
        link.black_hole()
        pair[1].write(b"lost")
        await until(lambda: link.swallowed == 4)
        assert await nothing_comes(pair)

        async with connected(link) as new:
            assert await nothing_comes(new)
            link.heal()

            assert await is_cut(pair)
            assert await said(new, b"found") == b"found"
    assert echo.heard == b"found"


async def test_black_hole_hides_that_the_client_has_left(link: FaultyProxy, echo: Echo) -> None:
    async with connected(link) as pair:
        assert await said(pair, b"here") == b"here"
        link.black_hole()

    async with connected(link) as other:  # so that the other's end has been seen by now
        other[1].write(b"lost")
        await until(lambda: link.swallowed == 4)
    assert echo.ended == 0
    link.heal()
    await until(lambda: link.connections == 0)


async def test_reply_can_be_lost_on_its_own(link: FaultyProxy, echo: Echo) -> None:
    async with connected(link) as pair:
        link.black_hole(toward="client")
        pair[1].write(b"commit")

        await until(lambda: link.swallowed == 6)
        assert echo.heard == b"commit"


async def test_clogged_bytes_arrive_late_and_whole(link: FaultyProxy, echo: Echo) -> None:
    async with connected(link) as pair:
        link.clog()
        pair[1].write(b"late")
        assert await nothing_comes(pair)
        assert echo.heard == b""

        link.heal()

        assert await pair[0].readexactly(4) == b"late"


@pytest.mark.parametrize("way", ["server", "client", None])
@pytest.mark.parametrize(
    "slow",
    [
        lambda link, way: link.delay(timedelta(seconds=0.05), way),
        lambda link, way: link.trickle(2_000, way),
    ],
    ids=["delay", "trickle"],
)
async def test_slow_bytes_arrive_whole(
    link: FaultyProxy, slow: Callable[[FaultyProxy, str | None], None], way: str | None
) -> None:
    text = bytes(range(200))
    async with connected(link) as pair:
        slow(link, way)
        assert await said(pair, text) == text


@pytest.mark.parametrize("fault", ["delay", "trickle"])
async def test_healing_does_not_wait_for_slow_bytes(link: FaultyProxy, fault: str) -> None:
    async with connected(link) as pair:
        if fault == "delay":
            link.delay(timedelta(hours=1))
        else:
            link.trickle(0.001)
        pair[1].write(b"slow" * 100)
        await asyncio.sleep(0.05)  # so that some of it is on its way, as a rule

        link.heal()

        async with asyncio.timeout(MAX_WAIT_S):
            assert await pair[0].readexactly(400) == b"slow" * 100


async def test_cut_lets_so_many_bytes_pass_and_resets_all(link: FaultyProxy, echo: Echo) -> None:
    async with connected(link) as pair, connected(link) as bystander:
        assert await said(bystander, b"!") == b"!"
        link.cut_after(3, toward="client")
        pair[1].write(b"abcdef")

        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)) as cut:
            await pair[0].readexactly(4)

        if isinstance(cut.value, asyncio.IncompleteReadError):
            assert cut.value.partial == b"abc"
        assert await is_cut(bystander)
        assert echo.heard == b"!abcdef"
        async with connected(link) as new:
            assert await said(new, b"again") == b"again"


async def test_reset_is_for_open_connections(link: FaultyProxy) -> None:
    async with connected(link) as pair:
        assert await said(pair, b"hello") == b"hello"

        link.reset()

        assert await is_cut(pair)
    async with connected(link) as new:
        assert await said(new, b"again") == b"again"


async def test_refused_until_healed(link: FaultyProxy, echo: Echo) -> None:
    async with connected(link) as pair:
        assert await said(pair, b"hello") == b"hello"

        link.refuse()

        assert await is_cut(pair)
    async with connected(link) as new:
        assert await is_cut(new)
    link.heal()
    async with connected(link) as new:
        assert await said(new, b"again") == b"again"
    assert echo.heard == b"helloagain"


async def test_server_that_is_down_is_reset() -> None:
    taken = await asyncio.start_server(Echo().serve, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    taken.close()
    await taken.wait_closed()
    async with FaultyProxy("127.0.0.1", port) as link, connected(link) as pair:
        assert await is_cut(pair)


async def test_url_keeps_everything_but_the_address(link: FaultyProxy) -> None:
    given = "postgresql+asyncpg://me:p%40ss@db.example:5432/shop?ssl=disable"

    assert link.url(given) == (
        f"postgresql+asyncpg://me:p%40ss@127.0.0.1:{link.port}/shop?ssl=disable"
    )
    assert link.url("nats://localhost") == f"nats://127.0.0.1:{link.port}"


async def test_leaving_ends_what_is_clogged(echo: Echo) -> None:
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    async with FaultyProxy("127.0.0.1", server.sockets[0].getsockname()[1]) as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        link.clog()
        writer.write(b"stuck")
        await asyncio.sleep(0)

    assert await is_cut((reader, writer))
    writer.close()
    server.close()
    await server.wait_closed()
