"""Models that have a name on the command line."""

from typing import Any

from torch import nn

from dbw_worker.vision import vision


def mlp() -> nn.Module:
    """A small network for the 8×8 images of `digits`: 64 numbers in, 10 classes out, 9 thousand parameters."""
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def mnist_cnn() -> nn.Module:
    """The paper's network for MNIST: two 5×5 convolutions and two fully connected layers.

    431 thousand parameters. The paper tells no more than that; widths and pooling are those of PyTorch's MNIST example
    of the time.
    """
    return nn.Sequential(
        nn.Conv2d(1, 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 4 * 50, 500),
        nn.ReLU(),
        nn.Linear(500, 10),
    )


def resnet18() -> nn.Module:
    """Torchvision's ResNet-18 for 32×32 images, 11.2 million parameters.

    As usual for CIFAR-10, it begins with a 3×3 convolution and without pooling: the original's beginning, made for
    224×224 images, would leave 8×8 of the 32×32.
    """
    model: Any = vision("models").resnet18(num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
    model.maxpool = nn.Identity()
    network: nn.Module = model
    return network
