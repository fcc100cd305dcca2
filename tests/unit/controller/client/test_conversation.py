"""What the client says and repeats, without any connection."""

from typing import Any

import grpc
import pytest

from dbw.v1.controller_pb2 import CoordinateRequest, CreateJobResponse
from dbw.v1.iteration_pb2 import Decision
from dbw.v1.job_pb2 import Job
from dbw_controller.client.conversation import MOST_ROWS, Conversation, Link
from dbw_runtime.failure import StatusError


def refused(code: grpc.StatusCode, reason: str) -> grpc.aio.AioRpcError:
    """An rpc that a controller refused."""
    trailers = grpc.aio.Metadata(*StatusError(code, reason, "refused").trailers())
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailers, "refused")


def attached(workers: int = 4) -> Conversation:
    talk = Conversation("resnet", workers, None, 0, "last")
    talk.create_request()
    talk.created(CreateJobResponse(session="s-1", job=Job(decision=Decision(iteration=0, k=4))))
    talk.settle()
    return talk


def end(talk: Conversation, **summary: Any) -> CoordinateRequest | None:
    return talk.end_iteration(talk.summary(duration_seconds=1.0, **summary))


def answer(talk: Conversation, k: int = 3) -> None:
    talk.decided(Decision(iteration=talk.iteration, k=k))
    talk.settle()


def test_one_request_is_under_way_at_a_time() -> None:
    talk = attached()
    assert end(talk) is not None
    assert talk.awaits_decision
    talk.settle()
    assert end(talk) is None, "the first one has no answer"
    assert not talk.awaits_decision
    talk.decided(Decision(iteration=1, k=2))
    assert talk.on_fallback, "it comes too late"
    assert end(talk) is not None
    answer(talk, k=2)
    assert (talk.k, talk.on_fallback) == (2, False)


def test_arrivals_are_sent_again_until_an_answer_shows_that_they_were_received() -> None:
    talk = attached()
    talk.arrived(1.0, 0, None)
    first = end(talk)
    assert first is not None
    talk.settle()
    talk.failed(ConnectionError("lost"))
    talk.arrived(2.0, 1, None)
    end(talk)
    repeated = talk.created(CreateJobResponse(session="s-2"))
    assert repeated is not None
    assert [(batch.iteration, list(batch.seconds)) for batch in repeated.arrivals] == [(0, [1.0]), (1, [2.0])]
    assert (repeated.session, repeated.summary.iteration) == ("s-2", 1)
    answer(talk)
    third = end(talk)
    assert third is not None
    assert not third.arrivals


def test_late_arrivals_go_on_where_the_others_stopped() -> None:
    talk = attached()
    for worker in range(3):
        talk.arrived(1.0 + worker, worker, None)
    end(talk)
    answer(talk)
    talk.arrived(9.0, 3, 0)
    request = end(talk)
    assert request is not None
    (late,) = request.arrivals
    assert (late.iteration, late.preceding, list(late.seconds), list(late.workers)) == (0, 3, [9.0], [3])


def test_what_waited_for_a_controller_fits_into_one_message() -> None:
    talk = Conversation("resnet", 2000, None, 0, "last")
    talk.failed(ConnectionError("nobody there"))
    for _ in range(60):
        for worker in range(2000):
            talk.arrived(1.0, worker, None)
        end(talk)
        talk.settle()
    repeated = talk.created(CreateJobResponse(session="s-1"))
    assert repeated is not None
    assert 2000 < sum(len(batch.seconds) for batch in repeated.arrivals) <= MOST_ROWS
    assert repeated.ByteSize() < 2**20
    assert repeated.arrivals[-1].iteration == 59, "the newest are kept"


@pytest.mark.parametrize("reason", ["INVALID_VALUE", "LIMIT_REACHED", "BUG"])
def test_what_was_refused_is_not_sent_again(reason: str) -> None:
    talk = attached()
    talk.arrived(1.0, 0, None)
    end(talk)
    talk.failed(refused(grpc.StatusCode.INVALID_ARGUMENT, reason))
    assert not talk.awaits_decision
    talk.settle()
    assert talk.created(CreateJobResponse(session="s-2")) is None
    request = end(talk)
    assert request is not None
    assert not request.arrivals


def test_a_job_of_an_earlier_training_begins_anew() -> None:
    talk = attached()
    end(talk)
    talk.failed(refused(grpc.StatusCode.FAILED_PRECONDITION, "STALE_ITERATION"))
    assert talk.create_request().iteration == 1


def test_attaching_again_does_not_begin_anew() -> None:
    talk = attached()
    talk.failed(ConnectionError("lost"))
    assert not talk.create_request().HasField("iteration")


def test_one_who_has_waited_for_an_attachment_does_not_wait_again() -> None:
    talk = Conversation("resnet", 4, None, 0, "last")
    assert talk.awaits_decision
    talk.settle()
    end(talk)
    assert not talk.awaits_decision


def test_workers_that_change_while_attaching_are_told_afterwards() -> None:
    talk = Conversation("resnet", 4, None, 0, "last")
    assert talk.create_request().membership.live_workers == 4
    talk.set_workers(3)
    talk.created(CreateJobResponse(session="s-1"))
    talk.settle()
    request = end(talk)
    assert request is not None
    assert request.membership.live_workers == 3


def test_a_repeated_request_tells_no_older_membership_than_the_attachment() -> None:
    talk = attached()
    talk.set_workers(3)
    end(talk)
    talk.failed(ConnectionError("lost"))
    talk.set_workers(2)
    assert talk.create_request().membership.live_workers == 2
    repeated = talk.created(CreateJobResponse(session="s-2"))
    assert repeated is not None
    assert not repeated.HasField("membership")


def test_k_is_always_between_one_and_the_workers_that_are_alive() -> None:
    talk = attached()
    for decided, expected in ((0, 1), (9, 4)):
        end(talk)
        answer(talk, k=decided)
        assert talk.k == expected


def test_the_summary_tells_that_k_was_no_decision_even_if_one_comes_meanwhile() -> None:
    talk = Conversation("resnet", 4, None, 0, "last")
    talk.settle()
    talk.create_request()
    talk.created(CreateJobResponse(session="s-1", job=Job(decision=Decision(iteration=0, k=1))))
    assert talk.k == 4
    assert talk.summary(duration_seconds=1.0).fallback


def test_another_process_that_took_over_ends_the_conversation() -> None:
    talk = attached()
    talk.failed(refused(grpc.StatusCode.ABORTED, "SESSION_REPLACED"))
    assert talk.link is Link.OVER
    end(talk)
    assert not talk.awaits_decision


@pytest.mark.parametrize("mistake", [{"worker": -1}, {"worker": 2**32}, {"worker": None}])
def test_a_wrong_arrival_is_refused_and_changes_nothing(mistake: dict[str, Any]) -> None:
    talk = attached()
    talk.arrived(1.0, 0, None)
    with pytest.raises(ValueError, match="worker"):
        talk.arrived(2.0, iteration=None, **mistake)
    request = end(talk)
    assert request is not None
    assert [(list(batch.seconds), list(batch.workers)) for batch in request.arrivals] == [([1.0], [0])]


def test_a_name_that_nothing_can_be_told_by_is_refused() -> None:
    with pytest.raises(TypeError, match=r"'losss'.* there are k, duration_seconds, loss"):
        end(attached(), losss=1.0)
