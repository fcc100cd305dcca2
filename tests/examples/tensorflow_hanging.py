"""The example in TensorFlow, all of whose workers but one hang from iteration 20 on until training is over.

`python tensorflow_hanging.py TRAIN.py …` takes the example's options. It needs nothing but the example's packages.
"""

import importlib.util
import sys
import threading
from typing import Any

HANG_FROM = 20

spec = importlib.util.spec_from_file_location("train", sys.argv.pop(1))
assert spec is not None
assert spec.loader is not None
train: Any = importlib.util.module_from_spec(spec)
sys.modules["train"] = train
spec.loader.exec_module(train)
compute, serve, over = train.gradient_of, train.serve, threading.Event()


def gradient_of(worker: int, version: int, weights: Any) -> Any:
    """A worker's gradient, unless it hangs."""
    if worker > 0 and version >= HANG_FROM:
        over.wait()
    return compute(worker, version, weights)


def serve_to_the_end(*arguments: Any) -> None:
    """Train, and let the threads end."""
    try:
        serve(*arguments)
    finally:
        over.set()


train.gradient_of, train.serve = gradient_of, serve_to_the_end
train.main()
