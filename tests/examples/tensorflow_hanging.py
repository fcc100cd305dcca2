"""The example in TensorFlow, all of whose workers but one hang from iteration 20 on, for good.

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
compute = train.gradient_of


def gradient_of(worker: int, version: int, weights: Any) -> Any:
    """A worker's gradient, unless it hangs."""
    if worker > 0 and version >= HANG_FROM:
        threading.Event().wait()
    return compute(worker, version, weights)


train.gradient_of = gradient_of
train.main()
