"""Where gradients are computed."""

import torch

from dbw_runtime.configuration import WrongValueError


def find_device(name: str) -> torch.device:
    """A device by its name on the command line, ready for use and with its index."""
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    expected = "auto, cpu, or a GPU that is there, such as cuda:0"
    if name.partition(":")[0] not in ("cpu", "cuda"):
        raise WrongValueError("device", name, expected)
    try:
        return torch.zeros(1, device=name).device
    except (RuntimeError, AssertionError) as error:  # PyTorch without CUDA fails with the second
        raise WrongValueError("device", name, f"{expected}; {str(error).splitlines()[0]}") from error
