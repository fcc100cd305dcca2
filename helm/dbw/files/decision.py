"""What `helm test` runs: report an iteration to the controller as a parameter server would, and get a decision."""

import os
import sys

from dbw_controller.cli.command import ClientOptions
from dbw_controller.client import DbwClient
from dbw_runtime.configuration import resolve

WORKERS = 4
options = resolve(ClientOptions, "client", {}, os.environ)
client = DbwClient(
    options.controller,
    deadline=30,
    tls_ca=options.tls_ca,
    tls_cert=options.tls_cert,
    tls_key=options.tls_key,
    token_file=options.token_file,
)
with client.job(f"helm-test-{os.environ.get('HOSTNAME', 'pod')}", WORKERS) as job:
    for worker in range(job.k):
        job.arrived(worker=worker, seconds=0.1 + 0.1 * worker)
    k = job.end_iteration(loss=1.0, learning_rate=0.1, mean_squared_norm=1.0, sum_squared_norms=6.0)
    if job.on_fallback or not 1 <= k <= WORKERS:
        sys.exit(f"{options.controller} made no decision: {job.problem}")
print(f"{options.controller} decided: wait for {k} of {WORKERS} workers")
