"""A training of `dbw ps` with a real `dbw worker`, which is interrupted, and goes on from its checkpoint."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dbw.v1.controller_pb2 import ExportJobStateResponse
from tests.servers import Worker, begun, parameter_server

ITERATIONS, MORE = 30, 5
CHECKPOINT, AFTER = f"checkpoint-{ITERATIONS:012}.pt", "after.json"
SERVER = ("--model", "mlp", "--optimizer", "sgd:lr=0.05,momentum=0.9", "--policy", "dbw-plus", "--job", "recorded")
WORKER = ("--model", "mlp", "--dataset", "digits", "--batch-size", "32", "--seed", "3", "--threads", "1")


def train(folder: Path, iterations: int, *flags: str, workers: Sequence[str] = ("a", "b")) -> None:
    """Train up to an iteration, which leaves a checkpoint."""
    run = ("--iterations", str(iterations), "--min-workers", str(len(workers)), "--linger-seconds", "5")
    kept = ("--checkpoint-dir", str(folder), "--training-log", str(folder / "log"))
    with parameter_server(*SERVER, *run, *kept, *flags) as server:
        started = [begun(Worker(server.target, name, *WORKER)) for name in workers]
        try:
            running = [context.__enter__() for context in started]
            assert server.wait() == 0, server.logs
            assert [worker.wait() for worker in running] == [0] * len(workers)
        finally:
            for context in started:
                context.__exit__(None, None, None)


def resumed(folder: Path) -> dict[str, Any]:
    """Go on from the checkpoint in a folder with one of the workers; returns what became of it.

    What a worker computes follows from seed, worker and version, so that losses are always the same.
    """
    train(folder, ITERATIONS + MORE, "--resume", workers=["a"])
    lines = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
    state = load(folder / f"checkpoint-{ITERATIONS + MORE:012}.pt")
    job = ExportJobStateResponse.FromString(state["job_state"])
    return {
        "iterations": [line["iteration"] for line in lines],
        "losses": [line["loss"] for line in lines],
        "learning_rates": [line["learning_rate"] for line in lines],
        "learnt_iterations": job.header.learnt_iterations,
        "workers": state["workers"],
    }


def load(path: Path) -> dict[str, Any]:
    """A checkpoint, as PyTorch alone opens it."""
    content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return content
