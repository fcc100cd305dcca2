"""A synchronous parameter server on torch.distributed that waits for as many gradients as a DBW controller says.

Rank 0 is the parameter server, all others are workers; every fourth of these is eight times slower than the others:

    pip install '.[controller]' torch                  # in a clone
    dbw controller &
    python examples/torch_distributed/train.py         # starts all ranks on this machine, or
    torchrun --nproc-per-node 9 examples/torch_distributed/train.py

`serve` is the parameter server, and the part to copy. Workers need PyTorch, nothing of DBW.

Parameters travel as [version, *parameters], gradients as [version, loss, *gradient], with the version of the parameters
that they were computed on.

Rank 0 ends without workers that hang. torchrun waits for those that it has started itself.
"""

import argparse
import os
import random
import tempfile
import time
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import ProcessException, spawn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dbw_controller.client import DbwClient, Moments

Arrival = tuple[int, float, Tensor]  # the worker, when it was, and the message

STOP = -1.0  # instead of a version; the worker sends it back, when it has finished its gradient
STOP_SECONDS = 10.0  # how long it may take for that
CLASSES, FEATURES, BATCH_SIZE, LEARNING_RATE = 10, 50, 64, 0.25
CENTRES = 0.5 * torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0))


def build_model() -> nn.Module:
    """The same model, with the same parameters, in every process."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def work(rank: int) -> None:
    """Compute gradients for rank 0 until it says stop, and take some time for it."""
    model, draws, delays = build_model(), torch.Generator().manual_seed(rank), random.Random(rank)
    weights = list(model.parameters())
    slowness = 8 if rank % 4 == 0 else 1
    received = torch.empty(1 + parameters_to_vector(weights).numel())
    while True:
        dist.recv(received, src=0)
        version, parameters = received[:1], received[1:]
        if version == STOP:
            break
        vector_to_parameters(parameters, weights)
        labels = torch.randint(CLASSES, (BATCH_SIZE,), generator=draws)
        points = CENTRES[labels] + torch.randn(BATCH_SIZE, FEATURES, generator=draws)
        loss = nn.functional.cross_entropy(model(points), labels)
        gradient = parameters_to_vector(torch.autograd.grad(loss, weights))
        time.sleep(slowness * (0.01 + delays.expovariate(1 / 0.005)))
        dist.send(torch.cat([version, loss.detach().reshape(1), gradient]), dst=0)
    dist.send(torch.full((len(received) + 1,), STOP), dst=0)


class Arrivals:
    """Gradients in the order in which they arrive, each with its time, whatever the parameter server is doing then."""

    def __init__(self, workers: int, length: int) -> None:
        self._queue: SimpleQueue[Arrival | Exception] = SimpleQueue()
        self._receiver = Thread(target=self._receive, args=(workers, length), daemon=True)
        self._receiver.start()

    def _receive(self, workers: int, length: int) -> None:
        try:
            while workers:
                message = torch.empty(length)
                rank = dist.recv(message)  # from whoever is first: work handles of gloo cannot be polled
                self._queue.put((rank, time.monotonic(), message))
                workers -= int(message[0] == STOP)
        except Exception as failure:  # no gradient within the timeout of gloo, say
            self._queue.put(failure)

    def get(self, timeout: float) -> Arrival:
        """Wait for the next one; raises `queue.Empty` after this many seconds."""
        arrival = self._queue.get(timeout=timeout)
        if isinstance(arrival, Exception):
            raise arrival
        return arrival

    def join(self, timeout: float) -> bool:
        """Wait until all workers have stopped, for this many seconds at most; returns whether they have."""
        self._receiver.join(timeout)
        return not self._receiver.is_alive()


def serve(workers: range, options: argparse.Namespace) -> None:
    """Push & Wait: every worker finishes its gradient, then begins one of the newest parameters."""
    parameters = parameters_to_vector(build_model().parameters()).detach()
    arrivals = Arrivals(len(workers), 2 + len(parameters))
    idle = list(workers)
    sending: dict[int, Any] = {}  # what is on its way to each rank: one that hangs takes nothing
    published: list[float] = []  # when each iteration's parameters were
    with DbwClient(options.controller).job(options.job, workers=workers) as job:
        for iteration in range(options.iterations):
            newest = torch.cat([torch.tensor([float(iteration)]), parameters])
            published.append(job.published())
            moments = Moments()
            losses: list[float] = []
            done: list[int] = []
            for rank in idle:
                sending[rank] = dist.isend(newest, dst=rank)
            for rank, now, message in job.gradients(arrivals.get):  # until k are in, or the deadline has passed
                sending[rank].wait()
                version, loss, gradient = int(message[0]), float(message[1]), message[2:]
                job.arrived(worker=rank, seconds=now - published[version], iteration=version)
                if version < iteration:  # late: it is not averaged, and its worker goes on with the newest parameters
                    sending[rank] = dist.isend(newest, dst=rank)
                else:
                    moments.add(gradient)
                    losses.append(loss)
                    done.append(rank)
            idle = done
            parameters = parameters - LEARNING_RATE * moments.mean()
            mean_loss = sum(losses) / len(losses)
            # The client knows when the iteration ended, and whether with the k-th arrival or at the deadline.
            job.end_iteration(loss=mean_loss, learning_rate=LEARNING_RATE, **moments.summary())
            if iteration % 10 == 0:
                print(f"iteration {iteration}, k = {moments.k}, loss {mean_loss:.3f}", flush=True)
    print(f"loss {mean_loss:.3f} after {options.iterations} iterations, {time.monotonic() - published[0]:.2f} s")
    stops: list[Any] = [dist.isend(torch.full((1 + len(parameters),), STOP), dst=rank) for rank in workers]
    if not arrivals.join(STOP_SECONDS):
        print("leaving without the workers that hang", flush=True)
        os._exit(0)  # anything else would wait for what is on its way to them
    for stop in stops:
        stop.wait()


def run(rank: int, world_size: int, rendezvous: str, options: argparse.Namespace) -> None:
    """Be one of the processes, from its beginning to its end."""
    torch.set_num_threads(1)  # there are others on this machine
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world_size)
    if rank == 0:
        serve(range(1, world_size), options)
    else:
        work(rank)
    dist.destroy_process_group()


def run_all(world_size: int, options: argparse.Namespace) -> None:
    """Start all ranks, and wait for the first one."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (world_size, f"file://{folder}/rendezvous", options)
        ranks = spawn(run, args=arguments, nprocs=world_size, join=False)  # type: ignore[no-untyped-call]
        server = ranks.processes[0]
        try:
            while not ranks.join(timeout=1.0) and server.exitcode != 0:  # raises what a rank has raised
                pass
        except ProcessException:
            server.join(STOP_SECONDS)
            if server.exitcode != 0:  # otherwise it has left, and a worker that was slow to stop misses it
                raise
        finally:
            for process in ranks.processes:
                process.kill()  # if it hangs


def main() -> None:
    """Be the rank that torchrun has started, or start all ranks."""
    parser = argparse.ArgumentParser(description="Train on torch.distributed with dynamic backup workers.")
    parser.add_argument("--controller", default="127.0.0.1:50051", metavar="HOST:PORT")
    parser.add_argument("--job", default="torch-distributed", metavar="NAME")
    parser.add_argument("--workers", type=int, default=8, metavar="N", help="by torchrun: all ranks but the first")
    parser.add_argument("--iterations", type=int, default=60, metavar="T")
    options = parser.parse_args()
    if min(options.workers, options.iterations) < 1:
        parser.error("--workers and --iterations must be at least 1")

    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if world_size < 2:
            parser.error("torchrun must start at least 2 processes: the parameter server and a worker")
        run(rank, world_size, "env://", options)
    else:
        run_all(options.workers + 1, options)


if __name__ == "__main__":
    main()
