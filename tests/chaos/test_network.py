"""The proxies of the chaos themselves."""

import asyncio
from random import Random

from tests.chaos.network import Link, Ports


def test_two_faults_that_meet_on_one_link_end_like_one() -> None:
    async def refuse(link: Link, seconds: float) -> None:
        await link.refuse()
        await asyncio.sleep(seconds)
        await link.start()

    async def claims() -> None:
        link = Link("client", Ports(Random()).draw(), 1)
        await link.start()
        await asyncio.gather(*(refuse(link, seconds) for seconds in (0.0, 0.0, 0.1)))
        _, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.close()
        await link.close()

    asyncio.run(claims())
