"""What a parameter server in Python imports. It needs grpcio, protobuf and nothing else of this distribution's extras.

    with DbwClient("controller:50051").job("resnet", workers=16) as job:
        while training:
            job.published()                               # the parameters were, just now
            for gradient in job.gradients(queue.get):     # until k are in, or the decision's deadline has passed
                job.arrived(worker=3, seconds=0.41)       # since the parameters were published
            job.end_iteration(loss=…, learning_rate=…, mean_squared_norm=…, sum_squared_norms=…)

Nothing here raises because of the controller, or slows the loop down: an iteration waits for its decision for 5% of the
last one's time at most, and goes on with the decision before. Where there is none, because the controller is gone, the
job is *on fallback*: k is the last one that was decided, or all workers.
"""

from dbw.v1.iteration_pb2 import EndCause
from dbw_controller.client.aio import AsyncDbwClient, AsyncTrainingJob
from dbw_controller.client.conversation import EVERY_DECISION, Fallback, Summary
from dbw_controller.client.moments import Moments
from dbw_controller.client.sync import DbwClient, TrainingJob

__all__ = [
    "EVERY_DECISION",
    "AsyncDbwClient",
    "AsyncTrainingJob",
    "DbwClient",
    "EndCause",
    "Fallback",
    "Moments",
    "Summary",
    "TrainingJob",
]
