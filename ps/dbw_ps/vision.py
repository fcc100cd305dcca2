"""torchvision, also where its compiled part was built for another kind of torch than there is."""

import importlib
from functools import cache
from types import ModuleType
from typing import Any

import torch


@cache
def _stand_ins() -> object:
    """The two operators without which a torchvision for CUDA cannot be imported beside a torch for the CPU.

    Nothing here calls them: they find boxes in images, and models, data sets and transforms do without. They are gone
    with the object that is returned.
    """
    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def vision(module: str) -> ModuleType:
    """One of torchvision's modules, such as `models`. Importing it takes a second, so only those do who need it."""
    try:
        return importlib.import_module(f"torchvision.{module}")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    _stand_ins()
    return importlib.import_module(f"torchvision.{module}")
