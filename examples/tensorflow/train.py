"""A synchronous parameter server in TensorFlow that waits for as many gradients as a DBW controller says.

Workers are threads, which compute side by side because TensorFlow does so without Python's lock; every fourth of them
is eight times slower than the others:

    pip install '.[controller]' -r examples/tensorflow/requirements.txt     # in a clone
    dbw controller &
    python examples/tensorflow/train.py

`serve` is the parameter server, and the part to copy.
"""

import argparse
import os
import random
import sys
import time
import traceback
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock

import tensorflow as tf

from dbw_controller.client import DbwClient, Moments

Weights = list[tf.Tensor]  # tensors never change, so that threads can share them

CLASSES, FEATURES, HIDDEN, BATCH_SIZE, LEARNING_RATE = 10, 50, 32, 64, 0.25
CENTRES = 0.5 * tf.random.stateless_normal((CLASSES, FEATURES), seed=(0, 0))


@dataclass(frozen=True)
class Gradient:
    """What a worker hands in."""

    worker: int
    version: int  # of the weights that it was computed on
    loss: float  # of the mini-batch
    parts: Weights


def first_weights() -> Weights:
    """Those of a network with one hidden layer."""
    shapes = [(FEATURES, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,)]
    return [0.15 * tf.random.stateless_normal(shape, seed=(1, part)) for part, shape in enumerate(shapes)]


@tf.function  # type: ignore[untyped-decorator]
def loss_and_gradient(weights: Weights, seed: tf.Tensor) -> tuple[tf.Tensor, Weights]:
    """The mean cross-entropy over a mini-batch of points around the centres of their classes, and its gradient."""
    labels = tf.random.stateless_uniform((BATCH_SIZE,), seed, maxval=CLASSES, dtype=tf.int32)
    points = tf.gather(CENTRES, labels) + tf.random.stateless_normal((BATCH_SIZE, FEATURES), seed)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        hidden = tf.nn.relu(points @ weights[0] + weights[1])
        scores = hidden @ weights[2] + weights[3]
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores))
    return loss, tape.gradient(loss, weights)


def gradient_of(worker: int, version: int, weights: Weights) -> Gradient:
    """A worker's gradient, for which it takes some time."""
    loss, parts = loss_and_gradient(weights, tf.constant([worker, version]))
    slowness = 8 if worker % 4 == 0 else 1
    time.sleep(slowness * (0.01 + random.expovariate(1 / 0.005)))
    return Gradient(worker, version, float(loss), parts)


class Arrivals:
    """Gradients in the order in which they arrive, each with its time, whatever the parameter server is doing then."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Future[Gradient], float]] = SimpleQueue()
        self._lock = Lock()  # whoever is earlier is also first

    def put(self, gradient: Future[Gradient]) -> None:
        """Called by a worker's thread."""
        with self._lock:
            self._queue.put((gradient, time.monotonic()))

    def get(self, timeout: float) -> tuple[Gradient, float]:
        """Wait for the next one. Raises what its worker has raised, or `queue.Empty` after this many seconds."""
        gradient, now = self._queue.get(timeout=timeout)
        return gradient.result(), now


def serve(options: argparse.Namespace, threads: Executor) -> None:
    """Push & Wait: every worker finishes its gradient, then begins one of the newest weights."""
    weights = first_weights()
    loss_and_gradient(weights, tf.constant([0, 0]))  # compiles it, which no iteration should wait for
    arrivals = Arrivals()
    idle = list(range(options.workers))
    published: list[float] = []  # when each iteration's weights were
    with DbwClient(options.controller).job(options.job, workers=options.workers) as job:
        for iteration in range(options.iterations):
            published.append(job.published())
            moments = Moments()
            losses: list[float] = []
            done: list[int] = []
            for worker in idle:
                threads.submit(gradient_of, worker, iteration, weights).add_done_callback(arrivals.put)
            for gradient, now in job.gradients(arrivals.get):  # until k are in, or the deadline has passed
                worker, version = gradient.worker, gradient.version
                job.arrived(worker=worker, seconds=now - published[version], iteration=version)
                if version < iteration:  # late: it is not averaged, and its worker goes on with the newest weights
                    threads.submit(gradient_of, worker, iteration, weights).add_done_callback(arrivals.put)
                else:
                    moments.add(gradient.parts)
                    losses.append(gradient.loss)
                    done.append(worker)
            idle = done
            weights = [part - LEARNING_RATE * mean for part, mean in zip(weights, moments.mean(), strict=True)]
            loss = sum(losses) / len(losses)
            # The client knows when the iteration ended, and whether with the k-th arrival or at the deadline.
            job.end_iteration(loss=loss, learning_rate=LEARNING_RATE, **moments.summary())
            if iteration % 10 == 0:
                print(f"iteration {iteration}, k = {moments.k}, loss {loss:.3f}", flush=True)
    print(f"loss {loss:.3f} after {options.iterations} iterations, {time.monotonic() - published[0]:.2f} s")


def main() -> None:
    """Read the options, and train."""
    parser = argparse.ArgumentParser(description="Train in TensorFlow with dynamic backup workers.")
    parser.add_argument("--controller", default="127.0.0.1:50051", metavar="HOST:PORT")
    parser.add_argument("--job", default="tensorflow", metavar="NAME")
    parser.add_argument("--workers", type=int, default=8, metavar="N")
    parser.add_argument("--iterations", type=int, default=60, metavar="T")
    options = parser.parse_args()
    if min(options.workers, options.iterations) < 1:
        parser.error("--workers and --iterations must be at least 1")
    status = 1
    try:
        serve(options, ThreadPoolExecutor(options.workers))
        status = 0
    except Exception:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(status)  # anything else would wait for threads that hang


if __name__ == "__main__":
    main()
