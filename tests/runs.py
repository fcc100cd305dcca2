"""Trainings that never were, for tests of what is shown of them."""

import numpy as np

from dbw_experiments.demo.runs import Arrival, Iteration, Run
from dbw_ps.losses import LOSSES

WORKERS, STRAGGLER, SLOWER = 8, 7, 6
TARGET = 0.2


def simulated(policy: str, iterations: int = 300, seed: int = 1) -> Run:
    """A training that never was, with a straggler: loss goes from 2.3 to 0.2, and "dbw" has k between 4 and 7."""
    random = np.random.default_rng(seed)
    wanted = int(policy.removeprefix("static:")) if policy.startswith("static:") else WORKERS
    slower = np.where(np.arange(WORKERS) == STRAGGLER, SLOWER, 1)
    free = np.zeros(WORKERS)  # when each worker has done what it is at
    now, expected = 0.0, 0.3
    rounds, arrivals = [], []
    for number in range(iterations):
        if policy == "dbw":
            wanted = int(np.clip(wanted + (random.random() < 0.08) * random.choice([-1, 1]), 4, 7))
        idle = free <= now
        done = np.where(idle, now + (0.03 + random.exponential(0.05, WORKERS)) * slower, np.inf)
        k = min(wanted, int(idle.sum()))
        end = np.sort(done)[k - 1].item()
        arrivals += [
            Arrival(number, worker, done[worker].item(), bool(done[worker] > end))
            for worker in np.flatnonzero(idle).tolist()
        ]
        progress = min(number / max(1, iterations - LOSSES), 1.0)  # and then it stays there
        loss = TARGET + 2.1 * (np.exp(-5 * progress) - np.exp(-5)) + 0.2 * abs(random.normal()) * (1 - progress)
        why = f"k = {k} has the largest gain per second: {0.1 * k:.4g} in {expected:.4g} s"
        rounds.append(Iteration(number, now, end - now, k, loss, expected, why))
        expected += 0.05 * (end - now - expected)
        free, now = np.where(idle, done, free), end
    return Run(
        policy,
        WORKERS,
        TARGET,
        tuple(rounds),
        tuple(sorted(arrivals, key=lambda arrival: arrival.time)),
        accuracy=0.942,
    )
