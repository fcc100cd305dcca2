"""What only the Python client does in a conversation; `tests/conversations/` has what those in all languages do."""

from typing import Any

import pytest

from dbw.v1.controller_pb2 import CoordinateRequest, CreateJobResponse
from dbw.v1.iteration_pb2 import Decision
from dbw.v1.job_pb2 import Job
from dbw_controller.client.conversation import BATCH_ROWS, EVERY_DECISION, MAX_ITERATIONS, MAX_ROWS, Conversation
from dbw_controller.server.app import ControllerOptions
from dbw_runtime.rpc import parsed


def attached(workers: int = 4, **patience: float) -> Conversation:
    conversation = Conversation("resnet", workers, None, 0, "last", **patience)
    conversation.create_request()
    conversation.created(CreateJobResponse(session="s-1", job=Job(decision=Decision(iteration=0, k=4))), 0.0)
    conversation.begin_iteration(0.0)
    return conversation


def end(conversation: Conversation, **summary: Any) -> CoordinateRequest | None:
    return conversation.end_iteration(conversation.summary(duration_seconds=1.0, **summary), 1.0)


def test_the_most_arrivals_that_are_kept_fit_into_a_message_of_1_mib() -> None:
    conversation = attached(2000)
    for row in range(MAX_ROWS):
        conversation.arrived(1.0, row % 2000, None)
    request = end(conversation)
    assert request is not None
    assert sum(len(batch.seconds) for batch in request.arrivals) == MAX_ROWS
    assert request.ByteSize() < 2**20


def test_the_most_iterations_that_are_kept_are_a_message_that_the_controller_takes() -> None:
    conversation = attached(64)
    late = range(MAX_ROWS // MAX_ITERATIONS // (BATCH_ROWS + 1))
    asked = end(conversation)  # which gets no answer
    for _ in range(2 * MAX_ITERATIONS):
        iteration = conversation.iteration
        for age in late:  # a batch of each iteration before
            conversation.arrived(1.0, 2**32 - 1, max(iteration - age, 0))
        end(conversation, loss=1.0, learning_rate=0.1, mean_squared_norm=1.0, sum_squared_norms=2.0)
    assert asked is not None
    conversation.failed(1.0, "UNAVAILABLE")
    conversation.created(CreateJobResponse(session="s-2"), 1.0)
    conversation.decided(Decision(iteration=1, k=4), 1.0)
    request = end(conversation)
    assert request is not None
    assert len(request.preceding) == MAX_ITERATIONS - 1
    assert request.ByteSize() < ControllerOptions().max_message_bytes
    assert parsed(CoordinateRequest, request.SerializeToString()) == request


def test_an_imported_state_may_change_k_in_the_middle_of_an_iteration() -> None:
    conversation = attached()
    conversation.imported(Decision(iteration=1, k=3))
    assert conversation.k == 4, "it is for another iteration"
    conversation.imported(Decision(iteration=0, k=2))
    assert conversation.k == 2


@pytest.mark.parametrize("mistake", [{"worker": -1}, {"worker": 2**32}, {"worker": None}])
def test_a_wrong_arrival_is_refused_and_changes_nothing(mistake: dict[str, Any]) -> None:
    conversation = attached()
    conversation.arrived(1.0, 0, None)
    with pytest.raises(ValueError, match="worker"):
        conversation.arrived(2.0, iteration=None, **mistake)
    request = end(conversation)
    assert request is not None
    assert [(list(batch.seconds), list(batch.workers)) for batch in request.arrivals] == [([1.0], [0])]


def test_every_decision_is_waited_for_even_where_no_time_has_passed_on_the_clock() -> None:
    conversation = attached(deadline=30.0, patience_share=EVERY_DECISION)
    conversation.end_iteration(conversation.summary(duration_seconds=1.0), 0.0)
    assert conversation.patience == 30.0


def test_an_unknown_field_of_a_summary_is_refused() -> None:
    with pytest.raises(TypeError, match=r"'losss'.* there are k, duration_seconds, loss"):
        end(attached(), losss=1.0)
