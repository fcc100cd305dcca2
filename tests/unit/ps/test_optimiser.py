import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import lr_scheduler

from dbw_ps import optimiser
from dbw_ps.model import FlatModel
from dbw_ps.optimiser import KNOWN, MEASURED_EVERY, REFUSED, Optimiser
from dbw_runtime.configuration import WrongValueError


def build() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


def vector(*values: float) -> FlatModel:
    """A model that is nothing but these parameters."""
    module = nn.Module()
    module.weight = nn.Parameter(torch.tensor(values))
    return FlatModel(module)


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(4)
    return [(torch.randn(16, 3, generator=generator), torch.randn(16, 2, generator=generator)) for _ in range(count)]


def squared_norm(model: FlatModel) -> float:
    return float(model.gradient.double().square().sum())


def train(model: FlatModel, optimiser: Optimiser, steps: int, first: int = 0) -> list[float]:
    """Learning rates of the steps."""
    rates = []
    for inputs, targets in batches(first + steps)[first:]:
        model.gradient.zero_()
        nn.functional.mse_loss(model.module(inputs), targets).backward()  # type: ignore[no-untyped-call]
        rates.append(optimiser.learning_rate)
        optimiser.step(squared_norm(model))
    return rates


def train_plainly(
    module: nn.Module, optimizer: torch.optim.Optimizer, schedule: Any, steps: int, clip_norm: float | None = None
) -> list[float]:
    rates = []
    for inputs, targets in batches(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(module(inputs), targets).backward()  # type: ignore[no-untyped-call]
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip_norm)
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return rates


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p),
    "sgd:": lambda p: torch.optim.SGD(p),
    "sgd:lr=0.1,momentum=0.9,nesterov=true,weight_decay=0.01": lambda p: torch.optim.SGD(
        p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01
    ),
    "SGD: LR = 1, Momentum = 0.5, dampening = 0.1": lambda p: torch.optim.SGD(p, lr=1, momentum=0.5, dampening=0.1),
    "adam:lr=1e-2,amsgrad=True": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "adamw:lr=0.01,betas=0.8/0.99": lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.99)),
    "RMSprop:momentum=0.5,centered=true": lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
    "adagrad:lr=0.1,lr_decay=0.01": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.01),
    "adafactor:eps=none/0.01": lambda p: torch.optim.Adafactor(p, eps=(None, 0.01)),
}

SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]] = {
    "steplr:step_size=6,gamma=0.5": lambda o: lr_scheduler.StepLR(o, 6, 0.5),
    "cosineannealinglr:t_max=15": lambda o: lr_scheduler.CosineAnnealingLR(o, 15),
    "MultiStepLR:milestones=3/9": lambda o: lr_scheduler.MultiStepLR(o, [3, 9]),
    "multisteplr:milestones=3": lambda o: lr_scheduler.MultiStepLR(o, [3]),
    "linearlr:total_iters=10": lambda o: lr_scheduler.LinearLR(o, total_iters=10),
    "exponentiallr:gamma=0.9": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "cosineannealingwarmrestarts:t_0=4,t_mult=2": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4, 2),
    "onecyclelr:max_lr=0.1,total_steps=20,anneal_strategy=linear": lambda o: lr_scheduler.OneCycleLR(
        o, 0.1, 20, anneal_strategy="linear"
    ),
    "cycliclr:base_lr=0.01,max_lr=0.1,step_size_up=4,mode=exp_range,gamma=0.9": lambda o: lr_scheduler.CyclicLR(
        o, 0.01, 0.1, 4, mode="exp_range", gamma=0.9
    ),
}
MOMENTUM = "sgd:lr=0.1,momentum=0.9"


@pytest.mark.parametrize("spec", OPTIMIZERS)
def test_an_optimiser_trains_as_plain_pytorch_does(spec: str) -> None:
    model, plain = FlatModel(build()), build()
    train(model, Optimiser(model, spec), 20)
    train_plainly(plain, OPTIMIZERS[spec](plain.parameters()), None, 20)
    torch.testing.assert_close(dict(model.module.state_dict()), dict(plain.state_dict()))
    assert torch.equal(model.parameters, torch.cat([p.detach().view(-1) for p in model.module.parameters()]))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_goes_as_plain_pytorch_has_it(schedule: str) -> None:
    model, plain = FlatModel(build()), build()
    rates = train(model, Optimiser(model, MOMENTUM, schedule), 20)
    optimizer = OPTIMIZERS["sgd:lr=0.1,momentum=0.9,nesterov=true,weight_decay=0.01"](plain.parameters())
    optimizer.param_groups[0].update(nesterov=False, weight_decay=0)
    assert rates == train_plainly(plain, optimizer, SCHEDULES[schedule](optimizer), 20)
    torch.testing.assert_close(dict(model.module.state_dict()), dict(plain.state_dict()))


def test_the_learning_rate_is_that_of_the_next_step() -> None:
    model = FlatModel(build())
    optimiser = Optimiser(model, "sgd:lr=0.5", "steplr:step_size=2")
    assert train(model, optimiser, 4) == [0.5, 0.5, 0.05, 0.05]
    assert optimiser.learning_rate == pytest.approx(0.005)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_factor_holds_for_its_steps_and_leaves_the_schedule_as_it_is(schedule: str) -> None:
    factors = [1.0, 0.5, 2.0, 0.25] * 5
    model, plain = FlatModel(build()), vector(1.0)
    scaled, unscaled = Optimiser(model, MOMENTUM, schedule), Optimiser(plain, MOMENTUM, schedule)
    for i, factor in enumerate(factors):
        scaled.rate_factor = factor
        effective = scaled.effective_learning_rate(1.0)
        assert effective == pytest.approx(factor * (unscaled.effective_learning_rate(1.0) or 0.0))
        assert train(model, scaled, 1, i) == [factor * unscaled.learning_rate]
        unscaled.step(0.0)


def test_a_step_goes_as_far_as_its_factor_says() -> None:
    model = vector(1.0)
    optimiser = Optimiser(model, "sgd:lr=0.5", "steplr:step_size=1,gamma=0.5")
    found = []
    for factor in (2.0, 1.0, 0.5):  # of rates of 0.5, 0.25 and 0.125
        optimiser.rate_factor = factor
        model.gradient.fill_(1.0)
        optimiser.step(1.0)
        found.append(model.parameters.item())
    assert found == [0.0, -0.25, -0.3125]


def test_a_measured_rate_is_that_of_the_next_factor() -> None:
    model = vector(1.0)
    optimiser = Optimiser(model, "adam:lr=0.01")  # whose first step is one of η
    optimiser.rate_factor = 0.5
    model.gradient.fill_(1.0)
    optimiser.step(1.0)
    assert model.parameters.item() == pytest.approx(0.995)
    assert optimiser.effective_learning_rate(1.0) == pytest.approx(0.05, rel=1e-4)
    optimiser.rate_factor = 2.0
    assert optimiser.effective_learning_rate(1.0) == pytest.approx(0.2, rel=1e-4)


def test_a_schedule_that_ends_stays_at_its_end() -> None:
    model = FlatModel(build())
    rates = train(model, Optimiser(model, MOMENTUM, "onecyclelr:max_lr=0.1,total_steps=5"), 9)
    assert rates[5:] == [rates[4]] * 4
    assert rates[4] == min(rates)


def test_frozen_parameters_stay_as_they_are() -> None:
    module = build()
    module.get_submodule("0").requires_grad_(False)
    model = FlatModel(module)
    before = model.parameters.clone()
    train(model, Optimiser(model, "adamw:weight_decay=0.5"), 3)
    assert torch.equal(model.parameters[:32], before[:32])
    assert not torch.equal(model.parameters[32:], before[32:])


def test_clipping_is_that_of_pytorch() -> None:
    model, plain = FlatModel(build()), build()
    train(model, Optimiser(model, "sgd:lr=0.1", clip_norm=0.3), 20)
    train_plainly(plain, torch.optim.SGD(plain.parameters(), lr=0.1), None, 20, clip_norm=0.3)
    torch.testing.assert_close(dict(model.module.state_dict()), dict(plain.state_dict()), rtol=1e-4, atol=1e-5)


@given(
    st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=5).filter(any),
    st.floats(0.01, 100),
)
def test_a_clipped_gradient_keeps_its_direction_and_has_at_most_the_norm(values: list[float], clip_norm: float) -> None:
    model = vector(*values)
    gradient = torch.tensor(values)
    model.gradient.copy_(gradient)
    Optimiser(model, "sgd:lr=0", clip_norm=clip_norm).step(squared_norm(model))
    norm = float(gradient.double().norm())
    assert float(model.gradient.double().norm()) == pytest.approx(min(norm, clip_norm), rel=1e-5)
    torch.testing.assert_close(model.gradient, gradient * min(1, clip_norm / norm))


@pytest.mark.parametrize("gradient", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_not_made_finite_by_clipping(gradient: float) -> None:
    model = vector(1.0)
    model.gradient.fill_(gradient)
    Optimiser(model, "sgd", clip_norm=1).step(gradient)
    assert not model.parameters.isfinite()


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("sgd:lr=0.1", 0.1),
        ("sgd:lr=0.1,dampening=0.5", 0.1),  # which has no effect without momentum
        ("sgd:lr=0.1,momentum=0.9", 1.0),
        ("sgd:lr=0.1,momentum=0.9,nesterov=true", 1.0),
        ("sgd:lr=0.1,momentum=0.9,dampening=0.5", 0.5),
    ],
)
def test_the_effective_learning_rate_of_sgd_is_where_a_constant_gradient_leads(spec: str, expected: float) -> None:
    model = vector(0.0, 0.0)
    optimiser = Optimiser(model, spec, clip_norm=2.5)
    for _ in range(200):
        before = model.parameters.clone()
        model.gradient.copy_(torch.tensor([3.0, 4.0]))
        rate = optimiser.effective_learning_rate(25)
        optimiser.step(25)
    assert rate == pytest.approx(expected / 2)  # clipped to half the norm
    assert optimiser.effective_learning_rate(2.5**2) == pytest.approx(expected)
    moved = (before - model.parameters).double()
    assert float(moved @ torch.tensor([3.0, 4.0]).double()) / 25 == pytest.approx(expected / 2, rel=1e-4)


def test_the_effective_learning_rate_follows_the_schedule() -> None:
    model = FlatModel(build())
    optimiser = Optimiser(model, MOMENTUM, "steplr:step_size=2")
    train(model, optimiser, 2)
    assert optimiser.effective_learning_rate(1.0) == pytest.approx(0.1)


def test_momentum_that_never_ends_has_no_effective_learning_rate() -> None:
    assert Optimiser(vector(1.0), "sgd:momentum=1").effective_learning_rate(1.0) is None


@pytest.mark.parametrize("clip_norm", [None, 2.0])
def test_the_effective_learning_rate_of_adam_is_measured(clip_norm: float | None) -> None:
    # The first step of Adam moves each parameter by η in the direction of its gradient's sign, so that
    # ⟨w_0 − w_1, ḡ⟩/‖ḡ‖² = η (3 + 4)/25, whether the gradient is clipped or not; β₁ is 0.9.
    model = vector(1.0, 1.0)
    optimiser = Optimiser(model, "adam:lr=0.01", clip_norm=clip_norm)
    assert optimiser.effective_learning_rate(25) is None
    model.gradient.copy_(torch.tensor([3.0, -4.0]))
    optimiser.step(25)
    assert optimiser.effective_learning_rate(25) == pytest.approx(0.1 * 7 / 25, rel=1e-4)


def test_the_effective_learning_rate_is_measured_every_few_steps() -> None:
    model = FlatModel(build())
    optimiser = Optimiser(model, "adam:lr=0.01")
    rates = []
    for _ in range(2 * MEASURED_EVERY + 1):
        train(model, optimiser, 1)  # always the same batch, so that all steps go downhill
        rates.append(optimiser.effective_learning_rate(1.0))
    assert [rates.count(rate) for rate in dict.fromkeys(rates)] == [MEASURED_EVERY, MEASURED_EVERY, 1]


def test_a_measurement_over_many_blocks_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimiser, "BLOCK", 7)
    generator = torch.Generator().manual_seed(5)
    model = vector(*torch.randn(100, generator=generator).tolist())
    model.gradient.copy_(torch.randn(100, generator=generator))
    before, gradient, size = model.parameters.clone(), model.gradient.clone(), squared_norm(model)
    stepped = Optimiser(model, "adamw:lr=0.1", clip_norm=1)
    stepped.step(size)
    moved = before.double() - model.parameters.double()
    expected = float(moved @ gradient.double()) / size / (1 - 0.9)
    assert stepped.effective_learning_rate(size) == pytest.approx(expected, rel=1e-6)


def test_a_step_that_did_not_go_downhill_has_no_effective_learning_rate() -> None:
    model = vector(1.0)
    optimiser = Optimiser(model, "adam:lr=0.01,betas=0.99/0.999")
    for gradient in [1.0] * MEASURED_EVERY + [-1.0]:  # the last one is measured, and momentum goes against it
        model.gradient.fill_(gradient)
        optimiser.step(1.0)
    assert optimiser.effective_learning_rate(1.0) is None


@pytest.mark.parametrize("gradient", [0.0, math.nan])
def test_a_gradient_that_says_nothing_gives_no_effective_learning_rate(gradient: float) -> None:
    model = vector(1.0)
    model.gradient.fill_(gradient)
    optimiser = Optimiser(model, "adam")
    optimiser.step(gradient**2)
    assert optimiser.effective_learning_rate(1.0) is None


@pytest.mark.parametrize("schedule", [None, *SCHEDULES])
@pytest.mark.parametrize("spec", [MOMENTUM, "adamw:lr=0.01"])
@pytest.mark.parametrize("first", [0, 7])
def test_going_on_from_a_saved_state_is_going_on(tmp_path: Path, spec: str, schedule: str | None, first: int) -> None:
    through = FlatModel(build())
    once = Optimiser(through, spec, schedule, clip_norm=0.5)
    train(through, once, first + 9)

    begun = FlatModel(build())
    before = Optimiser(begun, spec, schedule, clip_norm=0.5)
    train(begun, before, first)
    torch.save({"model": begun.state_dict(), "optimiser": before.state_dict()}, tmp_path / "state.pt")
    train(begun, before, 2, first)  # which must not change what was saved
    state = torch.load(tmp_path / "state.pt", weights_only=True)

    torch.manual_seed(99)
    resumed = FlatModel(nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2)))
    after = Optimiser(resumed, spec, schedule, clip_norm=0.5)
    resumed.load_state_dict(state["model"])
    after.load_state_dict(state["optimiser"])
    train(resumed, after, 9, first)
    assert torch.equal(resumed.parameters, through.parameters)
    assert torch.equal(resumed.buffers, through.buffers)
    assert after.learning_rate == once.learning_rate
    assert after.effective_learning_rate(1.0) == once.effective_learning_rate(1.0)


@pytest.mark.parametrize("spec", ["sgd:momentum=0.9", "adamw"])
def test_a_state_is_a_copy_in_both_directions(spec: str) -> None:
    model = FlatModel(build())
    optimiser = Optimiser(model, spec, "multisteplr:milestones=2/5")
    train(model, optimiser, 3)
    state, same = optimiser.state_dict(), optimiser.state_dict()
    train(model, optimiser, 3, 3)
    optimiser.load_state_dict(state)
    train(model, optimiser, 3, 3)
    assert state["names"] == same["names"]
    for part in ("optimizer", "schedule", "steps"):
        torch.testing.assert_close(state[part], same[part], rtol=0, atol=0)


def test_the_optimisers_state_is_one_that_plain_pytorch_loads() -> None:
    module = build()
    module.get_submodule("3").requires_grad_(False)
    model = FlatModel(module)
    optimiser = Optimiser(model, "adamw:lr=0.01", "steplr:step_size=4")
    train(model, optimiser, 5)
    plain = torch.optim.AdamW(build().parameters())
    schedule = lr_scheduler.StepLR(plain, 1)
    plain.load_state_dict(optimiser.state_dict()["optimizer"])
    schedule.load_state_dict(optimiser.state_dict()["schedule"])
    assert plain.param_groups[0]["lr"] == pytest.approx(0.001)
    assert (schedule.last_epoch, schedule.step_size) == (5, 4)


def test_the_state_decides_the_learning_rate_when_going_on() -> None:
    model = FlatModel(build())
    begun, resumed = Optimiser(model, "sgd:lr=0.5,momentum=0.5"), Optimiser(model, "sgd:lr=0.1")
    resumed.load_state_dict(begun.state_dict())
    assert resumed.learning_rate == 0.5
    assert resumed.effective_learning_rate(1.0) == 1


@pytest.mark.parametrize(
    ("spec", "schedule", "difference"),
    [
        ("adam", "steplr:step_size=3", "the state has the optimizer Adam, but SGD is given"),
        ("sgd", "exponentiallr:gamma=0.9", "the state has the schedule ExponentialLR, but StepLR is given"),
        ("sgd", None, "the state has the schedule None, but StepLR is given"),
    ],
)
def test_the_state_of_another_optimiser_is_refused(spec: str, schedule: str | None, difference: str) -> None:
    model = FlatModel(build())
    with pytest.raises(ValueError, match=difference):
        Optimiser(model, "sgd", "steplr:step_size=3").load_state_dict(Optimiser(model, spec, schedule).state_dict())


def test_the_state_for_another_model_is_refused() -> None:
    state = Optimiser(vector(1.0), "sgd").state_dict()
    with pytest.raises(ValueError, match="a model with 1 parameters, but this one has 6"):
        Optimiser(FlatModel(build()), "sgd").load_state_dict(state)


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(ValueError, match="it has no names, optimizer, steps, measured"):
        Optimiser(vector(1.0), "sgd").load_state_dict({"schedule": None})


NEEDED = {
    "cosineannealinglr": "t_max=5",
    "cosineannealingwarmrestarts": "t_0=5",
    "cycliclr": "base_lr=0.1,max_lr=1",
    "exponentiallr": "gamma=0.9",
    "multisteplr": "milestones=5",
    "onecyclelr": "max_lr=1,total_steps=1",
    "steplr": "step_size=5",
}


@pytest.mark.parametrize("name", sorted(set(KNOWN["schedule"]) - set(REFUSED)))
def test_every_schedule_that_is_offered_works(name: str) -> None:
    model = FlatModel(build())
    spec = f"{name}:{NEEDED[name]}" if name in NEEDED else name
    train(model, Optimiser(model, MOMENTUM, spec), 3)


@pytest.mark.parametrize("name", sorted(set(KNOWN["optimizer"]) - set(REFUSED)))
def test_every_optimiser_that_is_offered_works(name: str) -> None:
    model = FlatModel(nn.Sequential(nn.Linear(3, 2, bias=False)))  # Muon is for matrices only
    before = model.parameters.clone()
    train(model, Optimiser(model, name, "steplr:step_size=3"), 3)
    assert not torch.equal(model.parameters, before)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("", "NAME or NAME:key=value,key=value with a name out of adadelta, .*sgd$"),
        ("sdg", "a name out of adadelta, .*sgd$"),
        ("optimizer", "a name out of"),
        ("lr=0.1", "a name out of"),
        ("lbfgs", "lbfgs cannot be used here: it computes the loss several times"),
        ("sparseadam:lr=1", "sparseadam cannot be used here: it needs sparse gradients"),
        ("sgd:,", "sgd:key=value,key=value with keys out of lr, momentum, dampening, weight_decay, nesterov, foreach"),
        ("sgd:lr", "with keys out of lr, .*; 'lr' is not"),
        ("sgd:speed=1", "with keys out of lr, .*; 'speed=1' is not"),
        ("sgd:lr=0.1,", "with keys out of lr, .*; '' is not"),
        ("sgd:lr=0.1,maximize=true", "; 'maximize=true' is not"),
        ("sgd:lr=0.1,LR=0.2", "without a second lr"),
        ("sgd:lr=fast", "such that lr is a number, not 'fast'"),
        ("sgd:lr=", "such that lr is a number, not ''"),
        ("sgd:lr=nan", "such that lr is a number, not 'nan'"),
        ("sgd:lr=inf", "such that lr is a number, not 'inf'"),
        ("sgd:lr=true", "such that lr is a number, not 'true'"),
        ("sgd:nesterov=1", "such that nesterov is true or false, not '1'"),
        ("sgd:fused=perhaps", "such that fused is true or false or none, not 'perhaps'"),
        ("adam:betas=0.9", "such that betas is a number / a number, not '0.9'"),
        ("adam:betas=0.9/0.99/0.999", "such that betas is a number / a number, not"),
        ("muon:ns_steps=1.5", "such that ns_steps is an integer, not '1.5'"),
        ("sgd:lr=-1", "such that SGD of PyTorch works; it says: Invalid learning rate: -1.0"),
        ("sgd:nesterov=true", "Nesterov momentum requires a momentum and zero dampening"),
        ("adam:betas=1/1", "Invalid beta parameter"),
        ("sgd:fused=true,foreach=true", "`fused` and `foreach` cannot be `True` together"),
        ("muon", "Muon of PyTorch works; it says: .*2D"),
    ],
)
def test_a_wrong_optimiser_is_explained(spec: str, reason: str) -> None:
    with pytest.raises(WrongValueError, match=reason) as raised:
        Optimiser(vector(1.0), spec)
    assert (raised.value.option, raised.value.value) == ("optimizer", spec)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("", "a name out of constantlr, cosineannealinglr, .*steplr$"),
        ("lrscheduler", "a name out of"),
        ("sgd", "a name out of"),
        ("reducelronplateau", "reducelronplateau cannot be used here: it needs the loss of a validation"),
        ("lambdalr:lr_lambda=x", "lambdalr cannot be used here: it needs a function"),
        ("multiplicativelr", "it needs a function"),
        ("ChainedScheduler", "chainedscheduler cannot be used here: it needs other schedules"),
        ("sequentiallr", "it needs other schedules"),
        ("steplr", "given with step_size, such as steplr:step_size=…: StepLR has no default for it"),
        ("steplr:step_size=2.5", "such that step_size is an integer, not '2.5'"),
        ("steplr:step_size=2,last_epoch=3", "with keys out of step_size, gamma; 'last_epoch=3' is not"),
        ("multisteplr:milestones=1/x", "such that milestones is an integer, or several with / between them"),
        ("onecyclelr:max_lr=1,total_steps=3,anneal_strategy=up", "anneal_strategy is one of cos, linear, not 'up'"),
        ("onecyclelr:max_lr=1", "You must define either total_steps OR"),
        ("steplr:step_size=0", "such that StepLR of PyTorch works; it says: integer modulo by zero"),
        ("cosineannealinglr:t_max=0", "such that CosineAnnealingLR of PyTorch works; it says: integer modulo by zero"),
        ("cycliclr:base_lr=0.1,max_lr=1", "optimizer must support momentum or beta1 with `cycle_momentum`"),
    ],
)
def test_a_wrong_schedule_is_explained(spec: str, reason: str) -> None:
    with pytest.raises(WrongValueError, match=reason) as raised:
        Optimiser(vector(1.0), "adagrad", spec)
    assert (raised.value.option, raised.value.value) == ("schedule", spec)


@given(st.floats(0, 1e6), st.booleans())
def test_every_number_can_be_written_in_a_spec(rate: float, fused: bool) -> None:
    assert Optimiser(vector(1.0), f"sgd:lr={rate!r},fused={fused}").learning_rate == rate
