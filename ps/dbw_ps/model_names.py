"""Models that have a name on the command line, and where they are."""

MODELS = {
    "mlp": "dbw_ps.models:mlp",
    "mnist-cnn": "dbw_ps.models:mnist_cnn",
    "mnist-cnn-small": "dbw_ps.models:mnist_cnn_small",
    "mnist-cnn-strided": "dbw_ps.models:mnist_cnn_strided",
    "resnet8": "dbw_ps.models:resnet8",
    "resnet18": "dbw_ps.models:resnet18",
}
