"""What a worker's gradient costs beside bare PyTorch: the same forward and backward pass of the same model.

Ours also takes parameters over, checks between layers whether it is to stop, and lays gradient and buffers out for the
wire; in two or four parts it tells as well how much gradients vary inside the worker. One thread, which is what a
worker has that shares its machine.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks._harness import Report, Spread, interleave, ratio, run
from dbw_ps.model import FlatModel, load_model
from dbw_worker.gradients import Gradients

# Mini-batches such as the paper's, smaller for the one that takes seconds on a processor.
MODELS = {"mlp": ((64,), 128), "mnist-cnn": ((1, 28, 28), 128), "resnet18": ((3, 32, 32), 16)}
PARTS = (1, 2, 4)
SECONDS = 6.0  # for each candidate, about


def never() -> bool:
    """As long as no newer parameters come."""
    return False


def bare(name: str, inputs: Tensor, targets: Tensor) -> Callable[[], object]:
    """Plain PyTorch."""
    model = load_model(name)

    def compute() -> None:
        model.zero_grad(set_to_none=False)
        loss = cross_entropy(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        loss.item()

    return compute


def ours(name: str, inputs: Tensor, targets: Tensor, parts: int) -> Callable[[], object]:
    """A worker's."""
    model = FlatModel(load_model(name))
    gradients, vector = Gradients(model, cross_entropy, parts), model.vector.clone()
    return lambda: gradients.compute(vector, (inputs, targets), never)


def measure() -> Report:
    """Measure it for each model."""
    report = Report()
    torch.set_num_threads(1)
    for name, (shape, size) in MODELS.items():
        inputs, targets = torch.randn(size, *shape), torch.randint(10, (size,))
        candidates = {"bare": bare(name, inputs, targets)}
        candidates |= {f"{parts} part{'s' * (parts > 1)}": ours(name, inputs, targets, parts) for parts in PARTS}
        once = interleave(candidates, 1, 3)["bare"][0]
        calls = max(1, min(200, int(SECONDS / once / 10)))
        seconds = interleave(candidates, 10, calls)
        for candidate, values in seconds.items():
            report.results[f"{name}: {candidate}"] = Spread.of([1e3 * value for value in values], "ms")
            if candidate != "bare":
                report.results[f"{name}: {candidate} / bare"] = ratio(values, seconds["bare"])
    return report


def main() -> None:
    """Run the benchmark."""
    run("worker_gradient", measure, __doc__)


if __name__ == "__main__":
    main()
