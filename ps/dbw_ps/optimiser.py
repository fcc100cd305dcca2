"""Optimisers and learning rate schedules of PyTorch, named on the command line.

Both are given in one small language: `sgd:lr=0.1,momentum=0.9,nesterov=true`, `adamw:betas=0.9/0.999`, or
`cosineannealinglr:t_max=1000`: a class of torch.optim or torch.optim.lr_scheduler and its parameters, in any case.
"""

import collections.abc
import copy
import inspect
import math
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from dbw_ps.model import FlatModel
from dbw_runtime.configuration import KINDS, WrongValueError
from dbw_runtime.parameters import Parameter, split_parameters

MEASURED_EVERY = 10  # steps
BLOCK = 1 << 18  # elements that are float64 at a time when a step is measured

REFUSED = {
    "lbfgs": "it computes the loss several times in a step, which only workers can",
    "sparseadam": "it needs sparse gradients",
    "reducelronplateau": "it needs the loss of a validation, not only the number of the step",
    "lambdalr": "it needs a function",
    "multiplicativelr": "it needs a function",
    "sequentiallr": "it needs other schedules",
    "chainedscheduler": "it needs other schedules",
}
# Parameters that cannot be given: what is filled in here, functions, and what makes no sense for a server on a CPU.
WITHHELD = {"params", "optimizer", "last_epoch", "scale_fn", "verbose", "maximize", "capturable", "differentiable"}


def _classes(module: object, base: type) -> dict[str, type]:
    kinds = {name.lower(): kind for name, kind in vars(module).items() if isinstance(kind, type) and name[0] != "_"}
    return {name: kind for name, kind in sorted(kinds.items()) if issubclass(kind, base) and kind is not base}


KNOWN = {
    "optimizer": _classes(torch.optim, torch.optim.Optimizer),
    "schedule": _classes(lr_scheduler, lr_scheduler.LRScheduler),
}


class Spec:
    """The class of PyTorch that a text names, and the arguments for it."""

    def __init__(self, option: Literal["optimizer", "schedule"], text: str) -> None:
        self.option, self.text = option, text
        name, parameters = split_parameters(text)
        name = name.lower()
        usable = ", ".join(known for known in KNOWN[option] if known not in REFUSED)
        if name in REFUSED and name in KNOWN[option]:
            raise self.wrong(f"one of {usable}; {name} cannot be used here: {REFUSED[name]}")
        if name not in KNOWN[option]:
            raise self.wrong(f"NAME or NAME:key=value,key=value with a name out of {usable}")
        self.kind: Callable[..., Any] = KNOWN[option][name]
        self.name = KNOWN[option][name].__name__
        self.arguments = self._arguments(name, parameters)

    def wrong(self, expected: str) -> WrongValueError:
        """What to raise if something about the text is wrong."""
        return WrongValueError(self.option, self.text, expected)

    def _arguments(self, name: str, parameters: list[Parameter]) -> dict[str, object]:
        accepted = inspect.signature(self.kind).parameters.values()
        known = {parameter.name.lower(): parameter for parameter in accepted if parameter.name not in WITHHELD}
        hints = get_type_hints(self.kind.__init__, localns=vars(collections.abc))
        arguments: dict[str, object] = {}
        for given in parameters:
            key = (given.key or "").lower()
            if key not in known:
                form = f"{name}:key=value,key=value with keys out of {', '.join(known)}"
                raise self.wrong(f"{form}; {str(given)!r} is not")
            argument = known[key].name
            if argument in arguments:
                raise self.wrong(f"without a second {key}")
            try:
                arguments[argument] = _value(given.value, hints[argument])
            except ValueError:
                raise self.wrong(f"such that {key} is {_words(hints[argument])}, not {given.value!r}") from None
        for key, parameter in known.items():
            if parameter.default is parameter.empty and parameter.name not in arguments:
                raise self.wrong(f"given with {key}, such as {name}:{key}=…: {self.name} has no default for it")
        return arguments

    def make(self, of: object) -> Any:  # noqa: ANN401 (an optimiser or a schedule)
        """Construct it, of parameters or of an optimiser."""
        return self.tried(lambda: self.kind(of, **self.arguments))

    def tried(self, action: Callable[[], object]) -> object:
        """Do something; if PyTorch fails, blame the text."""
        try:
            return action()
        except Exception as error:
            raise self.wrong(f"such that {self.name} of PyTorch works; it says: {str(error) or repr(error)}") from error


def _value(text: str, hint: Any) -> object:  # noqa: ANN401
    """The value that a text stands for where this type is expected; ValueError if there is none."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        for part in sorted(parts, key=lambda part: (part is not NoneType, get_origin(part) is not None)):
            try:
                return _value(text, part)
            except ValueError:
                continue
    words = {"none": None} if hint is NoneType else {"true": True, "false": False} if hint is bool else {}
    if text.lower() in words:
        return words[text.lower()]
    if hint is float and math.isfinite(float(text)):
        return float(text)
    if hint is int:
        return int(text)
    if hint is str or (origin is Literal and text in parts):
        return text
    if origin is tuple:
        return tuple(_value(item, part) for item, part in zip(text.split("/"), parts, strict=True))
    if origin in (list, collections.abc.Iterable):
        return [_value(item, parts[0]) for item in text.split("/")]
    raise ValueError


def _words(hint: Any) -> str:  # noqa: ANN401
    """What a text must look like for this type."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_words(part) for part in parts if part is not Tensor))
    if origin is Literal:
        return f"one of {', '.join(parts)}"
    if origin is tuple:
        return " / ".join(_words(part) for part in parts)
    if origin in (list, collections.abc.Iterable):
        return f"{_words(parts[0])}, or several with / between them"
    return "none" if hint is NoneType else KINDS.get(hint, str(hint))


class Optimiser:
    """Steps a model along its gradient, which the caller has filled in, as an optimiser of PyTorch does."""

    def __init__(
        self, model: FlatModel, optimizer: str, schedule: str | None = None, clip_norm: float | None = None
    ) -> None:
        optimizer_spec = Spec("optimizer", optimizer)
        schedule_spec = None if schedule is None else Spec("schedule", schedule)
        rehearse(optimizer_spec, schedule_spec)
        self._model, self._clip_norm = model, clip_norm
        self._optimizer: torch.optim.Optimizer = optimizer_spec.make(model.module.parameters())
        self._schedule: lr_scheduler.LRScheduler | None = None
        if schedule_spec is not None:
            self._schedule = schedule_spec.make(self._optimizer)
        self.rate_factor = 1.0  # what the schedule's learning rate is multiplied with in the next step
        self._steps = 0
        self._measured: float | None = None  # of a step with the schedule's learning rate

    @property
    def learning_rate(self) -> float:
        """η of the next step, as the schedule and the factor have it."""
        return float(self._optimizer.param_groups[0]["lr"]) * self.rate_factor

    def effective_learning_rate(self, squared_norm: float) -> float | None:
        """The learning rate of the plain SGD that would go as far as the next step, when ‖ḡ‖² is the squared norm.

        With momentum μ it is how far a gradient moves the parameters in the end, η·(1 − dampening)/(1 − μ), times what
        clipping leaves of it. Optimisers other than SGD are measured every few steps as ⟨w_t − w_{t+1}, ḡ⟩/‖ḡ‖², over
        1 − β₁ where they have momentum: that is right for noise, which a controller needs it for, and too much for what
        gradients have in common.
        None if it is not known: before the first measurement, or if that step did not go downhill.
        """
        if not isinstance(self._optimizer, torch.optim.SGD):
            return None if self._measured is None else self._measured * self.rate_factor
        group = self._optimizer.param_groups[0]
        momentum = float(group["momentum"])
        if momentum >= 1:
            return None
        damped = 1 - float(group["dampening"]) if momentum else 1.0
        return self.learning_rate * self._clipping(squared_norm) * damped / (1 - momentum)

    def step(self, squared_norm: float) -> None:
        """Clip the model's gradient, whose squared norm ‖ḡ‖² is given; update the parameters; advance the schedule."""
        scale = self._clipping(squared_norm)
        if scale < 1:
            self._model.gradient.mul_(scale)
        group = self._optimizer.param_groups[0]
        scheduled, group["lr"] = group["lr"], self.learning_rate
        if isinstance(self._optimizer, torch.optim.SGD) or self._steps % MEASURED_EVERY:
            self._optimizer.step()
        else:
            before = self._model.parameters.clone()
            self._optimizer.step()
            progress = _progress(before, self._model.parameters, self._model.gradient)
            rate = progress / (scale * squared_norm) if scale * squared_norm > 0 else math.nan
            in_the_end = 1 - float(group.get("betas", [0.0])[0])  # a step has this share of its gradient
            self._measured = rate / in_the_end / self.rate_factor if math.isfinite(rate) and rate >= 0 else None
        group["lr"] = scheduled  # which the schedule goes on from
        self._steps += 1
        if self._schedule is not None:
            _advance(self._schedule)

    def _clipping(self, squared_norm: float) -> float:
        """What the gradient is multiplied with, min(1, clip_norm/‖ḡ‖)."""
        if self._clip_norm is None or not squared_norm > self._clip_norm**2:
            return 1.0
        return self._clip_norm / math.sqrt(squared_norm)

    def state_dict(self) -> dict[str, Any]:
        """Copy all that the next steps depend on. Its `optimizer` and `schedule` are what plain PyTorch loads."""
        return {
            "names": self._names(),
            "optimizer": _copied(self._optimizer.state_dict()),
            "schedule": None if self._schedule is None else _copied(self._schedule.state_dict()),
            "steps": self._steps,
            "measured": self._measured,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken: with its learning rate and all its other parameters, not those given here.

        If it is the state of another kind of optimiser, raise ValueError and change nothing.
        """
        if missing := [key for key in ("names", "optimizer", "schedule", "steps", "measured") if key not in state]:
            raise ValueError(f"this is no state of an optimiser: it has no {', '.join(missing)}")
        for option, name in self._names().items():
            if (found := state["names"][option]) != name:
                advice = "give the same one, or begin without the state"
                raise ValueError(f"the state has the {option} {found}, but {name} is given; {advice}")
        given, own = state["optimizer"]["param_groups"][0]["params"], self._optimizer.param_groups[0]["params"]
        if len(given) != len(own):
            raise ValueError(f"the state is of a model with {len(given)} parameters, but this one has {len(own)}")
        self._optimizer.load_state_dict(_copied(state["optimizer"]))
        if self._schedule is not None:
            self._schedule.load_state_dict(_copied(state["schedule"]))
        self._steps, self._measured = state["steps"], state["measured"]

    def _names(self) -> dict[str, str | None]:
        schedule = None if self._schedule is None else type(self._schedule).__name__
        return {"optimizer": type(self._optimizer).__name__, "schedule": schedule}


def rehearse(optimizer: Spec, schedule: Spec | None) -> None:
    """Try two steps on a small model: PyTorch finds some wrong values only when it uses them."""
    weight = nn.Parameter(torch.ones(2, 2))
    weight.grad = torch.ones(2, 2)
    stepped = optimizer.make([weight])
    advanced = None if schedule is None else schedule.make(stepped)
    for _ in range(2):
        optimizer.tried(stepped.step)
        if schedule is not None:
            schedule.tried(lambda: _advance(advanced))


def _advance(schedule: Any) -> None:  # noqa: ANN401
    """Make the learning rate that of the next step. A schedule with an end, such as OneCycleLR, stays there."""
    end = getattr(schedule, "total_steps", None)
    if end is None or schedule.last_epoch < end - 1:
        schedule.step()


def _progress(before: Tensor, after: Tensor, gradient: Tensor) -> float:
    """⟨w_t − w_{t+1}, g⟩ in float64, of which there is never more than a block."""
    blocks = zip(*(torch.split(vector, BLOCK) for vector in (before, after, gradient)), strict=True)
    return math.fsum(float(old.double().sub_(new).dot(along.double())) for old, new, along in blocks)


def _copied(value: Any) -> Any:  # noqa: ANN401
    """Copy plain data with tensors in them, each without the rest of the memory that it is a view of."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copied(item) for item in value)
    return copy.deepcopy(value)
