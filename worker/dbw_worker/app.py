"""`dbw worker`: compute gradients for a parameter server."""

import logging
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import torch

from dbw_ps.client import LinkError, ParameterServer
from dbw_ps.model import FlatModel, load_flat_model
from dbw_runtime.configuration import UsageError, WrongValueError, run_program
from dbw_runtime.logs import begin_log
from dbw_runtime.memory import keep_large_buffers
from dbw_runtime.metrics import serve_metrics
from dbw_runtime.plugins import Plugin
from dbw_worker import datasets
from dbw_worker.batches import Batches, Choice
from dbw_worker.delays import parse_delay
from dbw_worker.devices import find_device
from dbw_worker.gradients import Gradients
from dbw_worker.metrics import Metrics
from dbw_worker.options import PRECISIONS, WorkerOptions
from dbw_worker.randomness import seed_all
from dbw_worker.work import Worker

log = logging.getLogger(__name__)
METRICS_LISTEN = "127.0.0.1:9466"
SIGNAL_SECONDS = 0.2  # to notice a signal that reached another thread, which does not wake the one that waits
LOSSES = {"cross-entropy": "torch.nn.functional:cross_entropy", "mse": "torch.nn.functional:mse_loss"}
DESCRIPTION = """Compute gradients for a parameter server, on a GPU if there is one, until training is over. The model
must be the one that the server trains. Options come from flags, then environment variables, then the TOML file of
--config."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Work until training is over, or SIGTERM."""
    return run_program("worker", DESCRIPTION, WorkerOptions, arguments, work, LinkError, datasets.DataError)


def work(options: WorkerOptions) -> None:
    """Work until training is over, or SIGTERM, which makes it leave."""
    begin_log("worker", options)
    signal.signal(signal.SIGTERM, stop)
    keep_large_buffers()
    device = find_device(options.device)
    get_ready(options, device)
    dataset = datasets.load_examples(options.dataset, options.data_dir or datasets.default_folder())
    model = load_flat_model(options.model, device)
    try:
        choice = Choice(len(dataset), options.batch_size, options.seed, options.shards)  # type: ignore[arg-type]
    except ValueError as error:
        raise WrongValueError("batch_size", options.batch_size, f"less: {error}") from error
    batches = Batches(dataset, choice, device)
    loss = Plugin("loss", options.loss, "a function of a model's output and the targets", LOSSES).function()
    gradients = Gradients(model, loss, options.parts, PRECISIONS[options.precision])
    try_out(options, gradients, model, batches)
    metrics = Metrics(options.worker_id)
    server = ParameterServer(options.connection(options.server), options.worker_id, model.layout, options.patience)
    worker = Worker(server, batches, gradients, parse_delay(options.delay), options.seed, metrics, device)
    metrics.observe(lambda: server.computing_seconds)
    port = serve(options.metrics_listen, metrics, lambda: worker.problem(options.hung_after))
    log.info("ready", extra={"worker_id": options.worker_id, "device": str(device), "metrics_port": port})
    # Signals are for this thread, which only waits: what they raise must not break into a call of gRPC.
    with ThreadPoolExecutor(1, "compute", lambda: get_ready(options, device)) as thread, server:
        working = thread.submit(worker.run)
        while not wait([working], SIGNAL_SECONDS).done:
            pass
        working.result()
        server.close("training is over")
    log.info("training is over", extra={"worker_id": options.worker_id})


def stop(number: int, _: object) -> None:
    """Leave, as an orchestrator has asked."""
    log.info("told to stop", extra={"signal": signal.Signals(number).name})
    sys.exit(0)


def get_ready(options: WorkerOptions, device: torch.device) -> None:
    """Set what PyTorch has for each thread, and the seed of what is drawn before training."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # for what users' code puts there
    seed_all(options.seed, device)


def try_out(options: WorkerOptions, gradients: Gradients, model: FlatModel, batches: Batches) -> None:
    """Compute a gradient that nobody needs: a worker that cannot must not join, and the first one takes longer."""
    try:
        gradients.compute(model.vector.clone(), batches.batch(0, 0))
    except datasets.DataError:
        raise
    except Exception as error:
        log.exception("no gradient can be computed")
        problem = f"no gradient of {options.model} on {options.dataset} can be computed: {error!r}"
        raise UsageError(f"{problem}; model, data set, loss, device and precision must fit together") from error


def serve(address: str | None, metrics: Metrics, problem: Callable[[], str | None]) -> int:
    """Serve metrics and health as long as this process lives; returns the port."""
    try:
        return serve_metrics(address or METRICS_LISTEN, metrics.registry, problem).port
    except OSError:
        if address is not None:
            raise
    return serve_metrics("127.0.0.1:0", metrics.registry, problem).port
