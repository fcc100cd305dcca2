import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from dbw.v1.parameter_server_pb2 import GradientHeader
from dbw_ps.aggregate import Aggregate, WholeGradient
from dbw_ps.collector import GradientCollector
from dbw_ps.gradient import OutlierError
from dbw_ps.members import Members
from dbw_ps.outliers import Outliers
from dbw_ps.rounds import Fate, Rounds


def gradient(version: int, norm: float) -> WholeGradient:
    header = GradientHeader(version=version, loss=1.0)
    return WholeGradient(header, [torch.tensor([norm, 0.0])], [], norm**2)


@pytest.mark.parametrize("fate", [Fate.REJECTED, Fate.LOST])
def test_workers_that_start_over_are_still_compared_with_what_is_usual(fate: Fate) -> None:
    async def claims() -> None:
        members = Members("n", 30.0)
        aggregate = Aggregate(torch.zeros(2), torch.zeros(0))
        collector = GradientCollector(Rounds(0), members, aggregate, Outliers(1000.0), lambda: 0.0)
        worker, _ = members.join("worker", 0.0)
        collector.membership_changed(worker)
        again: list[int] = []
        for version in range(3):
            collector.begin(1, None)
            collector.use(worker, gradient(version, 1.0))
            assert await collector.wait_for_end(again.append) is not None
            with ThreadPoolExecutor(1) as compute:
                await collector.finish(compute)
        collector.begin(1, None)
        collector.failed(worker, 3, fate)
        waiting = asyncio.ensure_future(collector.wait_for_end(again.append))
        while not again:
            await asyncio.sleep(0)
        with pytest.raises(OutlierError):
            collector.use(worker, gradient(3, 1e20))
        collector.stop()
        await waiting

    asyncio.run(claims())
