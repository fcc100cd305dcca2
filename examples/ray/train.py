"""A synchronous parameter server on Ray that waits for as many gradients as a DBW controller says.

Workers are Ray actors, a quarter of them eight times slower than the others. It trains until a loss is reached, first
with dynamic backup workers, then waiting for all workers, with the same examples and delays, and compares the times:

    pip install '.[controller]' -r examples/ray/requirements.txt     # in a clone
    dbw controller &
    python examples/ray/train.py                       # on this machine, or on a cluster: --address HOST:PORT

`train` is the parameter server, and the part to copy. Nodes of a cluster need Ray and NumPy, nothing of DBW.
"""

import argparse
import time
from dataclasses import dataclass

import numpy as np
import ray
from numpy.typing import NDArray

from dbw.v1.job_pb2 import DbwPolicy, JobSpec, Policy, SyncPolicy
from dbw_controller.client import DbwClient, Moments

Array = NDArray[np.float64]

POLICIES = {"dbw": Policy(dbw=DbwPolicy()), "sync": Policy(sync=SyncPolicy())}
CLASSES, FEATURES, BATCH_SIZE, LEARNING_RATE = 10, 50, 64, 0.25
CENTRES = 0.5 * np.random.default_rng(0).normal(size=(CLASSES, FEATURES))


def draw(random: np.random.Generator, size: int) -> tuple[Array, NDArray[np.int64]]:
    """Examples of a problem to learn: points around the centre of their class, and the class."""
    labels = random.integers(CLASSES, size=size)
    return CENTRES[labels] + random.normal(size=(size, FEATURES)), labels


def loss_and_gradient(weights: Array, features: Array, labels: NDArray[np.int64]) -> tuple[float, Array]:
    """The mean cross-entropy of softmax regression, and its gradient."""
    scores = features @ weights
    probabilities = np.exp(scores - scores.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.log(probabilities[rows, labels]).mean()
    probabilities[rows, labels] -= 1
    return float(loss), features.T @ probabilities / len(labels)


class Worker:
    """Computes gradients, and takes its time."""

    def __init__(self, number: int, slowness: float) -> None:
        self.slowness = slowness
        self.random = np.random.default_rng([1, number])  # the same examples and delays in every training

    def is_ready(self) -> bool:
        """Answers once the worker has started."""
        return True

    def gradient(self, weights: Array) -> tuple[float, Array]:
        """The loss and the gradient of a mini-batch."""
        result = loss_and_gradient(weights, *draw(self.random, BATCH_SIZE))
        time.sleep(self.slowness * (0.01 + self.random.exponential(0.005)))
        return result


@dataclass(frozen=True)
class Arrival:
    """A gradient that a worker has computed."""

    worker: int
    iteration: int  # of the parameters that it was computed on
    time: float
    loss: float  # of the mini-batch
    gradient: Array


class Computing:
    """The gradients that workers compute now."""

    def __init__(self, workers: list[ray.actor.ActorHandle]) -> None:
        self._workers = workers
        self._tasks: dict[ray.ObjectRef, tuple[int, int]] = {}  # each one's worker and iteration

    def begin(self, worker: int, iteration: int, parameters: ray.ObjectRef) -> None:
        """Let a worker compute a gradient."""
        self._tasks[self._workers[worker].gradient.remote(parameters)] = worker, iteration

    def get(self, timeout: float) -> Arrival | None:
        """Wait for the next gradient; returns None after this many seconds."""
        # One at a time: each has its own time of arrival, also those of earlier iterations.
        # What arrives while nobody waits here, as in end_iteration, gets the time of the next wait.
        ready, _ = ray.wait(list(self._tasks), num_returns=1, timeout=timeout)
        if not ready:
            return None
        now, (worker, iteration) = time.monotonic(), self._tasks.pop(ready[0])
        loss, gradient = ray.get(ready[0])
        return Arrival(worker, iteration, now, loss, gradient)


@dataclass(frozen=True)
class Outcome:
    """How a training went."""

    iterations: int
    seconds: float
    loss: float  # on examples that no worker has seen


def train(
    workers: list[ray.actor.ActorHandle], client: DbwClient, name: str, policy: Policy, iterations: int, target: float
) -> Outcome:
    """Push & Wait: every worker finishes its gradient, then begins one of the newest parameters."""
    ray.get([worker.is_ready.remote() for worker in workers])
    held_out = draw(np.random.default_rng(2), 2000)
    weights = np.zeros((FEATURES, CLASSES))
    idle = list(range(len(workers)))
    computing = Computing(workers)
    published: list[float] = []  # when each iteration's parameters were
    with client.job(name, workers=len(workers), spec=JobSpec(policy=policy)) as job:
        for iteration in range(iterations):
            parameters = ray.put(weights)  # once for all workers
            published.append(job.published())
            moments = Moments()
            losses: list[float] = []
            done: list[int] = []
            for worker in idle:
                computing.begin(worker, iteration, parameters)
            for arrival in job.gradients(computing.get):  # until k are in, or the deadline has passed
                worker, begun = arrival.worker, arrival.iteration
                job.arrived(worker=worker, seconds=arrival.time - published[begun], iteration=begun)
                if begun < iteration:  # late: it is not averaged, and its worker goes on with the newest parameters
                    computing.begin(worker, iteration, parameters)
                else:
                    moments.add(arrival.gradient)
                    losses.append(arrival.loss)
                    done.append(worker)
            idle = done
            weights = weights - LEARNING_RATE * moments.mean()
            loss = float(np.mean(losses))
            # The client knows when the iteration ended, and whether with the k-th arrival or at the deadline.
            job.end_iteration(loss=loss, learning_rate=LEARNING_RATE, **moments.summary())
            if iteration % 10 == 0:
                print(f"{name}: iteration {iteration}, k = {moments.k}, loss {loss:.3f}", flush=True)
            held_out_loss, _ = loss_and_gradient(weights, *held_out)
            if held_out_loss <= target:
                break
    return Outcome(len(published), time.monotonic() - published[0], held_out_loss)


def start(count: int) -> list[ray.actor.ActorHandle]:
    """Start workers. One that dies starts again, on another node if need be, and its gradient is only late."""
    actor = ray.remote(scheduling_strategy="SPREAD", max_restarts=-1, max_task_retries=-1)(Worker)
    return [actor.remote(number, 8.0 if number < count / 4 else 1.0) for number in range(count)]


def main() -> None:
    """Train with each policy, and compare."""
    parser = argparse.ArgumentParser(description="Train on Ray, with and without dynamic backup workers.")
    parser.add_argument("--controller", default="127.0.0.1:50051", metavar="HOST:PORT")
    parser.add_argument("--job", default="ray", metavar="NAME", help="the jobs are NAME-dbw and NAME-sync")
    parser.add_argument("--workers", type=int, default=8, metavar="N")
    parser.add_argument("--iterations", type=int, default=60, metavar="T", help="of each training, at most")
    parser.add_argument("--target-loss", type=float, default=0.3, metavar="LOSS")
    parser.add_argument("--address", metavar="HOST:PORT", help="a Ray cluster; else RAY_ADDRESS, or one started here")
    options = parser.parse_args()
    if min(options.workers, options.iterations) < 1:
        parser.error("--workers and --iterations must be at least 1")

    ray.init(address=options.address, include_dashboard=False, logging_level="warning")
    client = DbwClient(options.controller)
    outcomes = {}
    for rule, policy in POLICIES.items():
        workers = start(options.workers)  # others for each training: some may hang
        name = f"{options.job}-{rule}"
        outcomes[rule] = train(workers, client, name, policy, options.iterations, options.target_loss)
    for rule, outcome in outcomes.items():
        print(f"{rule}: loss {outcome.loss:.3f} after {outcome.iterations} iterations, {outcome.seconds:.2f} s")
    if all(outcome.loss <= options.target_loss for outcome in outcomes.values()):
        print(f"speed-up by dbw: {outcomes['sync'].seconds / outcomes['dbw'].seconds:.1f}")
    else:
        print(f"no speed-up to tell: a loss of {options.target_loss} was not reached by both")


if __name__ == "__main__":
    main()
