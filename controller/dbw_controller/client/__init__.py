"""What a parameter server in Python imports. It needs grpcio, protobuf and nothing else of this distribution's extras.

    with DbwClient("controller:50051").job("resnet", workers=16) as job:
        while training:
            k = job.k                                     # wait for this many gradients
            job.arrived(worker=3, seconds=0.41)           # since the parameters were published
            job.end_iteration(loss=…, learning_rate=…, mean_squared_norm=…, sum_squared_norms=…)

Nothing here raises because of the controller, or blocks for longer than the deadline. Without an answer the job is
*on fallback*: k is the last one that was decided, or all workers.
"""

from dbw.v1.iteration_pb2 import EndCause
from dbw_controller.client.aio import AsyncDbwClient, AsyncTrainingJob
from dbw_controller.client.conversation import Fallback, Summary
from dbw_controller.client.moments import Moments
from dbw_controller.client.sync import DbwClient, TrainingJob

__all__ = [
    "AsyncDbwClient",
    "AsyncTrainingJob",
    "DbwClient",
    "EndCause",
    "Fallback",
    "Moments",
    "Summary",
    "TrainingJob",
]
