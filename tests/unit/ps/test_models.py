import pytest
import torch

from dbw_ps.model import FlatModel, load_model
from dbw_ps.models import MODELS

SHAPES = {
    "mlp": (64,),
    "mnist-cnn": (1, 28, 28),
    "mnist-cnn-small": (1, 28, 28),
    "mnist-cnn-strided": (1, 28, 28),
    "resnet8": (3, 32, 32),
    "resnet18": (3, 32, 32),
}
PARAMETERS = {
    "mlp": 9_610,
    "mnist-cnn": 431_080,
    "mnist-cnn-small": 21_840,
    "mnist-cnn-strided": 56_834,
    "resnet8": 19_954,
    "resnet18": 11_173_962,
}


def test_every_model_that_has_a_name_is_tested() -> None:
    assert SHAPES.keys() == MODELS.keys()


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items())
def test_models_by_name_tell_ten_classes_and_are_as_large_as_documented(name: str, parameters: int) -> None:
    model = FlatModel(load_model(name))
    assert model.layout.parameter_elements == parameters
    assert model.module(torch.zeros(2, *SHAPES[name])).shape == (2, 10)


@pytest.mark.parametrize("name", ["mnist-cnn", "mnist-cnn-small", "mnist-cnn-strided"])
def test_the_papers_network_has_two_5x5_convolutions_and_two_fully_connected_layers(name: str) -> None:
    layers = [type(layer).__name__ for layer in load_model(name).children()]
    assert (layers.count("Conv2d"), layers.count("Linear")) == (2, 2)
    sizes = [layer.kernel_size for layer in load_model(name).modules() if isinstance(layer, torch.nn.Conv2d)]
    assert sizes == [(5, 5), (5, 5)]


def test_resnet_keeps_the_size_of_small_images_at_its_beginning() -> None:
    model = load_model("resnet18")
    sizes: list[int] = []
    first = model.get_submodule("layer1")
    first.register_forward_hook(lambda _module, _inputs, output: sizes.append(output.shape[-1]))
    model(torch.zeros(2, 3, 32, 32))
    assert sizes == [32]
