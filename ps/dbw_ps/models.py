"""Models that have a name on the command line."""

import torch
from torch import Tensor, nn

from dbw_ps.vision import vision


def mlp() -> nn.Module:
    """A small network for the 8×8 images of `digits`: 64 numbers in, 10 classes out, 9 thousand parameters."""
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


class ChannelsLast(nn.Module):
    """Lets convolutions see the channels of a pixel side by side, which makes them nearly twice as fast on CPUs."""

    def forward(self, images: Tensor) -> Tensor:
        """The same images in another order in memory."""
        return images.to(memory_format=torch.channels_last)  # `contiguous` leaves images with one channel alone


def _mnist_cnn(first: int, second: int, hidden: int) -> nn.Module:
    """Two 5×5 convolutions with these numbers of channels, and two fully connected layers."""
    return nn.Sequential(
        ChannelsLast(),
        nn.Conv2d(1, first, 5),
        nn.MaxPool2d(2),  # before the ReLU, which has a quarter of the work then; the result is the same
        nn.ReLU(),
        nn.Conv2d(first, second, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 4 * second, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 10),
    )


def mnist_cnn() -> nn.Module:
    """The paper's network for MNIST: two 5×5 convolutions and two fully connected layers.

    431 thousand parameters. The paper tells no more than that; widths and pooling are those of PyTorch's MNIST example
    of the time.
    """
    return _mnist_cnn(20, 50, 500)


def mnist_cnn_small() -> nn.Module:
    """The same as in PyTorch's MNIST example until 2018, without its dropout: 22 thousand parameters."""
    return _mnist_cnn(10, 20, 50)


def mnist_cnn_strided() -> nn.Module:
    """A network of the same kind that is the fastest on CPUs: narrow, with strides instead of pooling.

    57 thousand parameters, with He's initialisation.
    """
    model = nn.Sequential(
        ChannelsLast(),
        nn.Conv2d(1, 8, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 5, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 4 * 16, 200),
        nn.ReLU(),
        nn.Linear(200, 10),
    )
    for parameter in model.parameters():
        nn.init.kaiming_normal_(parameter, nonlinearity="relu") if parameter.dim() > 1 else nn.init.zeros_(parameter)
    return model


def resnet18() -> nn.Module:
    """Torchvision's ResNet-18 for 32×32 images, 11.2 million parameters.

    As usual for CIFAR-10, it begins with a 3×3 convolution and without pooling: the original's beginning, made for
    224×224 images, would leave 8×8 of the 32×32.
    """
    model: nn.Module = vision("models").resnet18(num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model


class Residual(nn.Module):
    """A block of a residual network: two 3×3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Sequential()
        if stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, images: Tensor) -> Tensor:
        """What the block adds to its inputs, and the inputs."""
        return torch.relu(self.layers(images) + self.shortcut(images))


def resnet8() -> nn.Module:
    """A residual network for CIFAR-10 that two CPUs can train: three blocks and 20 thousand parameters."""
    return nn.Sequential(
        ChannelsLast(),
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        Residual(8, 8, 1),
        Residual(8, 16, 2),
        Residual(16, 32, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


FUNCTIONS = (mlp, mnist_cnn, mnist_cnn_small, mnist_cnn_strided, resnet8, resnet18)
MODELS = {function.__name__.replace("_", "-"): f"{__name__}:{function.__name__}" for function in FUNCTIONS}
