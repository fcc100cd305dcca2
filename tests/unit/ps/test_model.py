import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from dbw_ps.model import FlatModel, Layout, TensorSpec, load_model
from dbw_runtime.configuration import WrongValueError


def normalised() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


class Tied(nn.Module):
    """Input and output weights are one parameter, and two buffers are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(3, 3), nn.Linear(3, 3)
        self.decoder.weight = self.encoder.weight
        scale = torch.ones(3, dtype=torch.float16)
        self.encoder.register_buffer("scale", scale)
        self.decoder.register_buffer("scale", scale)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.decoder(self.encoder(inputs) * self.encoder.scale)
        return outputs


class Odd(nn.Module):
    """One parameter to train and one more tensor."""

    def __init__(self, tensor: Tensor, trained: bool = True, buffer: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2), requires_grad=trained)
        if buffer:
            self.register_buffer("odd", tensor)
        else:
            self.odd = nn.Parameter(tensor, requires_grad=False)


def joined(tensors: Iterator[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def test_the_vectors_hold_the_values_that_the_module_had() -> None:
    module = normalised()
    parameters = joined(module.parameters())
    model = FlatModel(module)
    assert model.module is module
    assert torch.equal(model.parameters, parameters)
    assert torch.equal(model.buffers, torch.tensor([0.0] * 4 + [1.0] * 4))
    assert torch.equal(model.gradient, torch.zeros(len(parameters)))


def test_the_layout_has_parameters_then_buffers_in_the_modules_order() -> None:
    layout = FlatModel(normalised()).layout
    shapes = [("0.weight", (4, 3)), ("0.bias", (4,)), ("1.weight", (4,)), ("1.bias", (4,)), ("3.weight", (2, 4))]
    assert layout.parameters == (*(TensorSpec(*shape) for shape in shapes), TensorSpec("3.bias", (2,)))
    assert layout.buffers == (TensorSpec("1.running_mean", (4,)), TensorSpec("1.running_var", (4,)))
    assert (layout.parameter_elements, layout.buffer_elements) == (34, 8)


def test_a_scalar_has_one_element() -> None:
    assert TensorSpec("scale", ()).elements == 1
    model = FlatModel(Odd(torch.tensor(3.0)))
    assert torch.equal(model.parameters, torch.tensor([1.0, 1.0, 3.0]))


def test_what_is_written_to_a_vector_is_in_the_module() -> None:
    module = normalised()
    model = FlatModel(module)
    for vector in (model.parameters, model.gradient, model.buffers):
        vector.copy_(torch.arange(len(vector)))
    assert torch.equal(joined(module.parameters()), model.parameters)
    assert torch.equal(joined(p.grad for p in module.parameters() if p.grad is not None), model.gradient)
    assert torch.equal(joined(b for b in module.buffers() if b.is_floating_point()), model.buffers)


def test_training_writes_gradients_and_running_means_to_the_vectors() -> None:
    torch.manual_seed(1)
    plain, inputs = normalised(), torch.randn(8, 3)
    model = FlatModel(normalised())
    model.load_state_dict(plain.state_dict())
    for _ in range(2):  # the second backward pass adds to the first
        for module in (plain, model.module):
            module(inputs).square().sum().backward()
    torch.testing.assert_close(joined(p.grad for p in plain.parameters() if p.grad is not None), model.gradient)
    torch.testing.assert_close(joined(b for b in plain.buffers() if b.is_floating_point()), model.buffers)


def test_a_state_dict_comes_out_that_plain_pytorch_loads() -> None:
    model = FlatModel(normalised())
    model.module(torch.randn(8, 3))
    plain = normalised()
    plain.load_state_dict(model.state_dict())
    assert list(plain.state_dict()) == list(model.state_dict())
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in plain.state_dict().items())
    assert plain.get_buffer("1.num_batches_tracked") == 1


def test_a_state_dict_is_a_copy_with_no_more_memory_than_it_needs(tmp_path: Path) -> None:
    model = FlatModel(normalised())
    state = model.state_dict()
    before = {name: value.clone() for name, value in state.items()}
    model.parameters.zero_()
    assert all(torch.equal(value, before[name]) for name, value in state.items())
    assert all(value.untyped_storage().nbytes() == value.nbytes for value in state.values())
    torch.save(state, tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True).keys() == state.keys()


def test_after_loading_a_state_dict_the_views_are_still_views() -> None:
    model, state = FlatModel(normalised()), normalised().state_dict()
    vector = model.parameters
    model.load_state_dict(state)
    assert model.parameters is vector
    assert torch.equal(vector, joined(value for name, value in state.items() if name.endswith(("weight", "bias"))))
    vector.zero_()
    assert not any(parameter.any() for parameter in model.module.parameters())


def test_the_order_of_a_state_dict_does_not_matter() -> None:
    model, state = FlatModel(normalised()), normalised().state_dict()
    model.load_state_dict(dict(reversed(state.items())))
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("build", "difference"),
    [
        (lambda: nn.Sequential(nn.Linear(3, 4)), "the tensor 1.bias is missing"),
        (lambda: nn.Sequential(*normalised(), nn.Linear(2, 2)), "the tensor 4.bias is not expected"),
        (
            lambda: nn.Sequential(nn.Linear(5, 4), *list(normalised())[1:]),
            r"the tensor 0.weight has the shape \(4, 5\) instead of \(4, 3\)",
        ),
    ],
)
def test_a_state_dict_of_another_model_is_refused_and_changes_nothing(
    build: Callable[[], nn.Module], difference: str
) -> None:
    model = FlatModel(normalised())
    before = model.parameters.clone()
    with pytest.raises(ValueError, match=difference):
        model.load_state_dict(build().state_dict())
    assert torch.equal(model.parameters, before)


def test_tied_tensors_are_in_the_vectors_once() -> None:
    model = FlatModel(Tied())
    assert [spec.name for spec in model.layout.parameters] == ["encoder.weight", "encoder.bias", "decoder.bias"]
    assert [spec.name for spec in model.layout.buffers] == ["encoder.scale"]
    assert model.module.get_parameter("decoder.weight") is model.module.get_parameter("encoder.weight")
    model.buffers.fill_(7)
    assert torch.equal(model.module.get_buffer("decoder.scale"), torch.full((3,), 7.0))
    plain = Tied()
    plain.load_state_dict(model.state_dict())
    assert torch.equal(plain.decoder.weight, model.module.get_parameter("encoder.weight"))


def test_the_gradient_of_a_tied_parameter_is_that_of_both_its_uses() -> None:
    torch.manual_seed(2)
    plain, inputs = Tied().float(), torch.randn(5, 3)
    model = FlatModel(Tied())
    model.load_state_dict(plain.state_dict())
    for module in (plain, model.module):
        module(inputs).square().sum().backward()
    torch.testing.assert_close(joined(p.grad for p in plain.parameters() if p.grad is not None), model.gradient)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_model_of_another_precision_becomes_float32(dtype: torch.dtype) -> None:
    module = normalised().to(dtype)
    expected = joined(module.parameters()).float()
    model = FlatModel(module)
    assert torch.equal(model.parameters, expected)
    assert {tensor.dtype for tensor in (*module.parameters(), model.buffers, model.gradient)} == {torch.float32}
    module(torch.randn(8, 3)).sum().backward()
    plain = normalised().to(dtype)
    plain.load_state_dict(model.state_dict())
    assert torch.equal(joined(plain.parameters()).float(), expected)


def test_a_recurrent_network_works_on_the_views() -> None:
    module = nn.LSTM(3, 4)
    model = FlatModel(module)
    module(torch.randn(5, 2, 3))[0].sum().backward()
    assert model.gradient.any()
    model.parameters.zero_()
    assert not module(torch.randn(5, 2, 3))[0].any()


def test_frozen_parameters_have_a_place_but_no_gradient() -> None:
    module = normalised()
    module.get_submodule("0").requires_grad_(False)
    model = FlatModel(module)
    assert model.layout == FlatModel(normalised()).layout
    module(torch.randn(8, 3)).square().sum().backward()
    assert module.get_parameter("0.weight").grad is None
    assert not model.gradient[:16].any()
    assert model.gradient[16:].any()
    assert torch.equal(model.parameters[:12].view(4, 3), module.get_parameter("0.weight"))


def test_making_a_module_flat_again_is_allowed() -> None:
    module = normalised()
    first, second = FlatModel(module), FlatModel(module)
    second.parameters.fill_(2)
    assert (module.get_parameter("0.bias") == 2).all()
    assert not torch.equal(first.parameters, second.parameters)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (nn.ReLU, "nothing to train"),
        (lambda: nn.Linear(2, 2).requires_grad_(False), "nothing to train"),
        (lambda: Odd(torch.ones(2, dtype=torch.complex64)), r"odd is of the type torch.complex64"),
        (lambda: Odd(torch.ones(2, dtype=torch.complex64), buffer=True), r"odd is of the type torch.complex64"),
        (lambda: Odd(torch.ones(2, dtype=torch.int64)), r"odd is of the type torch.int64"),
        (lambda: Odd(torch.ones(2, device="meta")), "odd is on the device meta"),
        (lambda: Odd(torch.ones(2, 2).to_sparse(), buffer=True), "odd is torch.sparse_coo"),
        (lambda: nn.LazyLinear(3), "weight has no shape yet"),
    ],
)
def test_what_cannot_be_flat_is_refused(build: Callable[[], nn.Module], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        FlatModel(build())


def test_parameters_that_only_share_memory_are_refused() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module.get_submodule("1").weight = nn.Parameter(module.get_parameter("0.weight").data)
    with pytest.raises(ValueError, match=r"0\.weight and 1\.weight share memory"):
        FlatModel(module)


specs = st.lists(
    st.builds(TensorSpec, st.sampled_from("abcd"), st.lists(st.integers(0, 3), max_size=2).map(tuple)),
    max_size=4,
    unique_by=lambda spec: spec.name,
).map(tuple)
layouts = st.builds(Layout, specs, specs)


@given(layouts, layouts)
def test_layouts_differ_in_something_unless_they_are_equal(one: Layout, other: Layout) -> None:
    assert (one.difference(other) is None) == (one == other)


@pytest.mark.parametrize(
    ("parameters", "buffers", "difference"),
    [
        (["a"], ["m"], "the parameter b is missing"),
        (["a", "b", "c"], ["m"], "the parameter c is not expected"),
        (["b", "a"], ["m"], "the parameter b comes where a is expected"),
        (["a", "b"], [], "the buffer m is missing"),
        (["a", "b"], ["m", "n"], "the buffer n is not expected"),
    ],
)
def test_a_layouts_difference_is_told_in_words(parameters: list[str], buffers: list[str], difference: str) -> None:
    def layout(parameters: list[str], buffers: list[str]) -> Layout:
        return Layout(tuple(TensorSpec(n, (2,)) for n in parameters), tuple(TensorSpec(n, (2,)) for n in buffers))

    assert layout(["a", "b"], ["m"]).difference(layout(parameters, buffers)) == difference


def test_a_layouts_other_shape_is_told_in_words() -> None:
    expected, found = Layout((TensorSpec("a", (2, 3)),), ()), Layout((TensorSpec("a", (6,)),), ())
    assert expected.difference(found) == "the parameter a has the shape (6,) instead of (2, 3)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder of one's own; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in list(sys.modules):
        if name.partition(".")[0] in ("nets", "models") or name.startswith("dbw_plugin_"):
            del sys.modules[name]


def write(path: Path, code: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(code, "utf-8")


NETS = """
from dataclasses import dataclass

from torch import nn

number = 3
net = nn.Linear(1, 1)

@dataclass
class Size:
    features: "int" = 2

class Net(nn.Linear):
    def __init__(self):
        super().__init__(Size().features, 1)

def build():
    return Net()

def unfinished():
    pass

def sized(features):
    return nn.Linear(features, 1)

def broken():
    raise RuntimeError("out of clay")
"""


@pytest.mark.parametrize("place", ["nets:build", "nets:Net", "models.nets:build", "models/nets.py:build"])
def test_a_model_is_found_in_the_current_folder(folder: Path, place: str) -> None:
    write(folder / "nets.py", NETS)
    write(folder / "models" / "nets.py", NETS)
    module = load_model(place)
    assert isinstance(module, nn.Linear)
    assert module.in_features == 2


def test_a_model_is_found_by_an_absolute_path_and_may_import_from_the_current_folder(folder: Path) -> None:
    write(folder / "nets.py", NETS)
    write(folder / "elsewhere" / "file.py", "from nets import build\n")
    assert isinstance(load_model(f"{folder}/elsewhere/file.py:build"), nn.Linear)


def test_an_installed_package_may_have_the_model() -> None:
    assert isinstance(load_model("torch.nn:Identity"), nn.Identity)


def test_the_callers_seed_decides_the_models_values() -> None:
    values = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        values.append(joined(load_model(f"{__file__}:normalised").parameters()))
    assert torch.equal(values[0], values[1])
    assert not torch.equal(values[0], values[2])


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("nets", "package.module:function or path/to/file.py:function"),
        ("nets:", "package.module:function or path/to/file.py:function"),
        (":build", "package.module:function or path/to/file.py:function"),
        ("", "package.module:function or path/to/file.py:function"),
        ("nowhere:build", "there is no module nowhere, neither installed nor in"),
        ("models.nowhere:build", "there is no module models.nowhere"),
        ("nets.deeper:build", "there is no module nets.deeper"),
        ("nowhere.py:build", "there is no file /.*/nowhere.py"),
        ("..nets:build", "importing ..nets failed with TypeError"),
        ("needy:build", "importing needy failed with ModuleNotFoundError: No module named 'absent'"),
        ("unwritten.py:build", "importing unwritten.py failed with SyntaxError"),
        ("filed.py:build", "importing filed.py failed with FileNotFoundError"),
        ("nets:nothing", "nets has no nothing, but dataclass, Size, Net, build, unfinished, sized, broken$"),
        ("torch.nn:nothing", "torch.nn has no nothing$"),
        ("nets:number", "number is no function but of type int"),
        ("nets:net", "net is no function but of type Linear"),
        ("nets:unfinished", r"unfinished\(\) returned something of type NoneType"),
        ("nets:sized", r"sized\(\) failed with TypeError: .*missing 1 required positional argument"),
        ("nets:broken", r"broken\(\) failed with RuntimeError: out of clay"),
    ],
)
def test_a_wrong_place_of_a_model_is_explained(folder: Path, place: str, reason: str) -> None:
    write(folder / "nets.py", NETS)
    write(folder / "models" / "nets.py", NETS)
    write(folder / "needy.py", "import absent\n")
    write(folder / "unwritten.py", "def build(\n")
    write(folder / "filed.py", "open('absent.txt')\n")
    with pytest.raises(WrongValueError, match=reason) as raised:
        load_model(place)
    assert (raised.value.option, raised.value.value) == ("model", place)
