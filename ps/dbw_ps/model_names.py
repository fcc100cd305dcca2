"""Models that have a name on the command line, and where they are."""

MODELS = {
    "mlp": "dbw_worker.models:mlp",
    "mnist-cnn": "dbw_worker.models:mnist_cnn",
    "mnist-cnn-small": "dbw_worker.models:mnist_cnn_small",
    "mnist-cnn-strided": "dbw_worker.models:mnist_cnn_strided",
    "resnet8": "dbw_worker.models:resnet8",
    "resnet18": "dbw_worker.models:resnet18",
}
