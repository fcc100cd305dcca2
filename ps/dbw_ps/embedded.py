"""The controller inside a parameter server: the same job as behind the network, with the same interface."""

import asyncio
from typing import Unpack

from dbw.v1.controller_pb2 import CreateJobResponse, ExportJobStateResponse
from dbw.v1.job_pb2 import Job as JobMessage
from dbw_controller.client.conversation import Conversation, Summary
from dbw_controller.client.settings import join_state, whole_state
from dbw_controller.client.training import Training, log
from dbw_controller.core.decision import Decision
from dbw_controller.core.errors import JobError
from dbw_controller.core.job import Job, warm_up
from dbw_controller.core.policies import DEFAULT, built_in_policies, create_policy
from dbw_controller.wire import messages
from dbw_controller.wire.state import export_state, import_state
from dbw_runtime.failure import describe


class EmbeddedTrainingJob(Training):
    """A job that this process decides for itself; `AsyncTrainingJob` is its twin over the network."""

    def __init__(self, conversation: Conversation) -> None:
        super().__init__(conversation)
        request = conversation.create_request()
        spec = messages.spec_from(request.spec, create_policy(DEFAULT))
        self.job = Job(spec, messages.membership_from(request.membership), request.iteration)

    async def open(self) -> None:
        """Get ready to decide."""
        await asyncio.to_thread(warm_up, built_in_policies())
        decision = messages.decision_message(self.job.decision(), include_estimates=False)
        self._conversation.created(CreateJobResponse(job=JobMessage(decision=decision)))
        self._conversation.begin_iteration()

    async def end_iteration(self, **summary: Unpack[Summary]) -> int:
        """The iteration has ended; returns k of the next. `Summary` lists what it takes."""
        request = self._conversation.end_iteration(self._conversation.summary(**summary))
        assert request is not None, "no earlier one waits for its answer"
        decision = self.job.report(messages.report_from(request))
        assert decision is not None, "the request has a summary"
        asyncio.get_running_loop().call_soon(self.job.catch_up)  # while workers compute
        self._conversation.decided(messages.decision_message(decision, include_estimates=False))
        return self._conversation.begin_iteration()

    async def export_state(self) -> bytes | None:
        """All that the job has learnt, for a checkpoint."""
        header, data = export_state(self.name, self.job)
        return join_state([ExportJobStateResponse(header=header, data=data)])

    async def import_state(self, state: bytes) -> bool:
        """Replace what the job has learnt by an exported state; returns whether that worked."""
        try:
            whole = whole_state(state)
            decision: Decision = import_state(self.job, whole.header, whole.data)
        except (JobError, OSError) as error:
            log.warning("the state cannot be imported: %s", describe(error), extra={"job": self.name})
            return False
        self._conversation.imported(messages.decision_message(decision, include_estimates=False))
        return True

    async def close(self, delete: bool = False) -> None:
        """There is nothing to close, and nobody else who keeps the job."""
