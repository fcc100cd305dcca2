"""What one worker sends wrongly has no trace in the parameters, and does not keep the others from training."""

import math
from collections.abc import Callable, Iterator
from itertools import count
from typing import NamedTuple

import grpc
import pytest
import torch
from torch import Tensor

from dbw.v1 import parameter_server_pb2 as pb
from dbw_ps import messages, pieces
from dbw_ps.model import FlatModel
from dbw_ps.tensors import bytes_of
from tests import models
from tests.reports import failure
from tests.servers import PATIENCE, ParameterServer, parameter_server, wait_until
from tests.workers import Rogue, Worker, gradient, is_close, trained, working

SYNC = ("--model", "tests.models:tiny", "--policy", "sync", "--accumulate", "float64")
ROGUES = (f"rogue-{number}" for number in count())  # each test has its own: what one has lost follows it


class Training(NamedTuple):
    """A training without end, of two workers that are as they should be."""

    server: ParameterServer
    worker: Worker  # one of them

    def gradient(self, version: int, worker: int) -> Tensor:
        """The gradient that another worker should send."""
        self.worker.wait_for(version)
        return gradient(self.worker.seen[version], worker, version)

    def go_on(self, version: int, *others: int) -> None:
        """Assert that the iteration of a version is averaged over the two workers and these others, and goes on."""
        self.worker.wait_for(version + 3)
        before, after = self.worker.seen[version], self.worker.seen[version + 1]
        assert is_close(after, trained(before, [0, 1, *others], [version]))


@pytest.fixture(scope="module")
def endless() -> Iterator[Training]:
    with parameter_server(*SYNC, "--min-workers", "2") as server, working(server.target, 2) as (worker, _):
        worker.wait_for(1)
        yield Training(server, worker)


@pytest.fixture
def training(endless: Training) -> Iterator[Training]:
    yield endless
    assert endless.server.other_output == []
    assert [line for line in endless.server.logs if line["level"] == "error"] == []


@pytest.fixture
def rogue(training: Training) -> Iterator[Rogue]:
    with Rogue(training.server.target, next(ROGUES)) as rogue:
        yield rogue


def spoilt(at: int, value: float) -> Callable[[Rogue, int, Tensor], list[bytes]]:
    def messages_of(rogue: Rogue, version: int, vector: Tensor) -> list[bytes]:
        vector[at] = value
        return list(pieces.cut(rogue.header(version, vector), bytes_of(vector)))

    return messages_of


def with_header(**fields: object) -> Callable[[Rogue, int, Tensor], list[bytes]]:
    return lambda rogue, version, vector: list(
        pieces.cut(rogue.header(version, vector, **fields), bytes_of(vector)),
    )


def of_half_floats(rogue: Rogue, version: int, vector: Tensor) -> list[bytes]:
    """Half as long as its header says."""
    half = vector.half()
    header = rogue.header(version, half, type=pb.ELEMENT_TYPE_FLOAT32)
    return list(pieces.cut(header, bytes_of(half)))


def out_of_order(rogue: Rogue, version: int, vector: Tensor) -> list[bytes]:
    content = bytes_of(vector)
    header = rogue.header(version, vector).SerializeToString()
    first, second, third = content[:40], content[40:80], content[80:]
    return [pieces.encode(header, 0, first), pieces.encode(None, 80, third), pieces.encode(None, 40, second)]


def too_long(rogue: Rogue, version: int, vector: Tensor) -> list[bytes]:
    content = bytes_of(torch.cat([vector, vector]))
    return [pieces.encode(rogue.header(version, vector).SerializeToString(), 0, content)]


def torn(rogue: Rogue, version: int, vector: Tensor) -> list[bytes]:
    """A piece ends within an element."""
    content = bytes_of(vector)
    header = rogue.header(version, vector).SerializeToString()
    return [pieces.encode(header, 0, content[:7]), pieces.encode(None, 7, content[7:])]


def with_an_empty_piece(rogue: Rogue, version: int, vector: Tensor) -> list[bytes]:
    return [rogue.half(version, vector), pieces.encode(None, len(vector) // 2 * 4, memoryview(b""))]


def with_a_second_header(rogue: Rogue, version: int, vector: Tensor) -> list[bytes]:
    header = rogue.header(version, vector).SerializeToString()
    return 2 * [pieces.encode(header, 0, memoryview(b""))]


def ended_early(rogue: Rogue, version: int, vector: Tensor) -> list[bytes]:
    return [rogue.half(version, vector)]


def without_data(rogue: Rogue, version: int, vector: Tensor) -> list[bytes]:
    return [pieces.encode(rogue.header(version, vector).SerializeToString(), 0, memoryview(b""))]


def garbage_in_the_middle(rogue: Rogue, version: int, vector: Tensor) -> list[bytes]:
    return [rogue.half(version, vector), b"\xff" * 100]


REJECTED = {
    "an element is NaN": (spoilt(3, math.nan), pb.GRADIENT_OUTCOME_NOT_FINITE),
    "the last element is infinite": (spoilt(-1, -math.inf), pb.GRADIENT_OUTCOME_NOT_FINITE),
    "the loss is NaN": (with_header(loss=math.nan), pb.GRADIENT_OUTCOME_NOT_FINITE),
    "the loss is infinite": (with_header(loss=math.inf), pb.GRADIENT_OUTCOME_NOT_FINITE),
    "the loss is finite and absurd": (with_header(loss=1.7e308), pb.GRADIENT_OUTCOME_NOT_FINITE),
    "the header says another size": (with_header(total_bytes=8), pb.GRADIENT_OUTCOME_MALFORMED),
    "the header says no size": (with_header(total_bytes=0), pb.GRADIENT_OUTCOME_MALFORMED),
    "the header says a monstrous size": (with_header(total_bytes=2**63), pb.GRADIENT_OUTCOME_MALFORMED),
    "the type is unknown": (with_header(type=77), pb.GRADIENT_OUTCOME_MALFORMED),
    "the type is another": (with_header(type=pb.ELEMENT_TYPE_FLOAT16), pb.GRADIENT_OUTCOME_MALFORMED),
    "elements are shorter than the header says": (of_half_floats, pb.GRADIENT_OUTCOME_MALFORMED),
    "pieces are out of order": (out_of_order, pb.GRADIENT_OUTCOME_MALFORMED),
    "there is more than the header says": (too_long, pb.GRADIENT_OUTCOME_MALFORMED),
    "a piece ends within an element": (torn, pb.GRADIENT_OUTCOME_MALFORMED),
    "a piece in the middle is empty": (with_an_empty_piece, pb.GRADIENT_OUTCOME_MALFORMED),
    "a second piece has the header, and nothing else": (with_a_second_header, pb.GRADIENT_OUTCOME_MALFORMED),
    "an element is finite and absurd": (spoilt(3, 1e25), pb.GRADIENT_OUTCOME_OUTLIER),
}


@pytest.mark.parametrize(("messages_of", "outcome"), REJECTED.values(), ids=REJECTED)
def test_a_gradient_that_makes_no_sense_is_rejected_and_the_iteration_does_without(
    training: Training,
    rogue: Rogue,
    messages_of: Callable[[Rogue, int, Tensor], list[bytes]],
    outcome: "pb.GradientOutcome.ValueType",
) -> None:
    version = rogue.wait_until_expected(workers=3)
    vector = training.gradient(version, rogue.number)
    response = rogue.push(*messages_of(rogue, version, vector))
    assert response.outcome == outcome
    assert response.message
    rogue.leave()
    training.go_on(version)


LOST = {
    "the stream ends half-way": (ended_early, grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND"),
    "there is nothing but a header": (without_data, grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND"),
    "garbage in the middle": (garbage_in_the_middle, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_VALUE"),
}


@pytest.mark.parametrize(("messages_of", "code", "reason"), LOST.values(), ids=LOST)
def test_a_worker_whose_gradient_breaks_off_joins_again_and_is_waited_for(
    training: Training,
    rogue: Rogue,
    messages_of: Callable[[Rogue, int, Tensor], list[bytes]],
    code: grpc.StatusCode,
    reason: str,
) -> None:
    version = rogue.wait_until_expected(workers=3)
    with pytest.raises(grpc.RpcError) as caught:
        rogue.push(*messages_of(rogue, version, training.gradient(version, rogue.number)))
    assert failure(caught.value)[:2] == (code, reason)
    with pytest.raises(grpc.RpcError) as caught:
        _ = rogue.version
    assert failure(caught.value)[1] == "SESSION_NOT_FOUND"
    training.go_on(version)
    rogue.rejoin()
    version = rogue.wait_until_expected(workers=3)
    assert rogue.push_gradient(version, training.gradient(version, rogue.number)).outcome == pb.GRADIENT_OUTCOME_USED
    rogue.leave()
    training.go_on(version, rogue.number)


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16])
def test_any_type_of_elements_is_taken(training: Training, rogue: Rogue, kind: torch.dtype) -> None:
    version = rogue.wait_until_expected(workers=3)
    vector = training.gradient(version, rogue.number).to(kind)
    response = rogue.push_gradient(version, vector, type=messages.TYPE_NUMBERS[kind])
    assert response.outcome == pb.GRADIENT_OUTCOME_USED
    rogue.leave()
    training.worker.wait_for(version + 1)
    before, after = training.worker.seen[version], training.worker.seen[version + 1]
    others = [gradient(before, worker, version) for worker in (0, 1)]
    mean = torch.stack([*others, vector.float()]).mean(0)
    assert is_close(after, before - 0.1 * mean)


def test_parameters_that_were_never_published_have_no_gradients(training: Training, rogue: Rogue) -> None:
    version = rogue.wait_until_expected(workers=3)
    vector = training.gradient(version, rogue.number)
    for wrong in (version + 1, 2**62):
        assert rogue.push_gradient(wrong, vector).outcome == pb.GRADIENT_OUTCOME_WRONG_VERSION
    assert rogue.version == version, "it is still waited for"
    assert rogue.push_gradient(version, vector).outcome == pb.GRADIENT_OUTCOME_USED
    rogue.leave()
    training.go_on(version, rogue.number)


def test_gradients_of_earlier_parameters_are_late_and_the_worker_is_still_waited_for(
    training: Training, rogue: Rogue
) -> None:
    version = rogue.wait_until_expected(workers=3)
    vector = training.gradient(version, rogue.number)
    assert rogue.push_gradient(version - 1, vector).outcome == pb.GRADIENT_OUTCOME_LATE
    assert rogue.push_gradient(0, vector).outcome in (pb.GRADIENT_OUTCOME_LATE, pb.GRADIENT_OUTCOME_DUPLICATE)
    assert rogue.version == version
    assert rogue.push_gradient(version, vector).outcome == pb.GRADIENT_OUTCOME_USED
    rogue.leave()
    training.go_on(version, rogue.number)


def test_a_gradient_that_is_sent_twice_counts_once(training: Training, rogue: Rogue) -> None:
    version = rogue.wait_until_expected(workers=3)
    vector = training.gradient(version, rogue.number)
    assert rogue.push_gradient(version, vector).outcome == pb.GRADIENT_OUTCOME_USED
    assert rogue.push_gradient(version, vector).outcome == pb.GRADIENT_OUTCOME_DUPLICATE
    rogue.rejoin()
    assert rogue.push_gradient(version, vector).outcome == pb.GRADIENT_OUTCOME_DUPLICATE
    rogue.leave()
    training.go_on(version, rogue.number)


def test_a_gradient_that_is_sent_twice_at_the_same_time_counts_once(training: Training, rogue: Rogue) -> None:
    version = rogue.wait_until_expected(workers=3)
    vector = training.gradient(version, rogue.number)
    pushes = [rogue.begin_push(), rogue.begin_push()]
    for push in pushes:
        push.send(rogue.half(version, vector))
    rest = pieces.encode(None, len(vector) // 2 * 4, bytes_of(vector[len(vector) // 2 :]))
    for push in pushes:
        push.send(rest)
    outcomes = [push.end().outcome for push in pushes]
    assert pb.GRADIENT_OUTCOME_USED in outcomes
    assert {pb.GRADIENT_OUTCOME_USED, pb.GRADIENT_OUTCOME_DUPLICATE, pb.GRADIENT_OUTCOME_LATE} >= set(outcomes)
    assert outcomes.count(pb.GRADIENT_OUTCOME_USED) == 1
    rogue.leave()
    training.go_on(version, rogue.number)


def test_a_gradient_that_is_broken_off_half_way_leaves_no_trace(training: Training, rogue: Rogue) -> None:
    version = rogue.wait_until_expected(workers=3)
    vector = training.gradient(version, rogue.number)
    push = rogue.begin_push()
    push.send(rogue.half(version, vector))
    wait_until(lambda: "dbw_ps_staged_gradients 1.0" in training.server.metrics())
    assert rogue.version == version
    push.cancel()
    training.go_on(version)  # without a time-out: nothing more can come
    wait_until(lambda: "dbw_ps_staged_gradients 0.0" in training.server.metrics())


def test_a_worker_that_joins_again_while_it_pushes_is_waited_for(training: Training, rogue: Rogue) -> None:
    """As after a broken network: the server still has the push of the earlier session, which will never go on."""
    version = rogue.wait_until_expected(workers=3)
    vector = training.gradient(version, rogue.number)
    push = rogue.begin_push()
    push.send(rogue.half(version, vector))
    wait_until(lambda: "dbw_ps_staged_gradients 1.0" in training.server.metrics())
    rogue.rejoin()
    wait_until(lambda: "dbw_ps_staged_gradients 0.0" in training.server.metrics())  # it is broken off by now
    assert rogue.version == version
    assert rogue.push_gradient(version, vector).outcome == pb.GRADIENT_OUTCOME_USED
    push.cancel()
    rogue.leave()
    training.go_on(version, rogue.number)


def test_who_joins_again_gets_an_end_of_what_the_earlier_session_waited_for(training: Training, rogue: Rogue) -> None:
    version = rogue.wait_until_expected(workers=3)
    request = pb.SubscribeRequest(session=rogue.session, known_version=version)
    stream = rogue.stub.Subscribe(request, timeout=PATIENCE)
    push = rogue.begin_push()
    push.send(rogue.half(version, training.gradient(version, rogue.number)))
    wait_until(lambda: "dbw_ps_staged_gradients 1.0" in training.server.metrics())
    rogue.rejoin()
    for answer in (lambda: next(stream), lambda: push.call.result(PATIENCE)):
        with pytest.raises(grpc.RpcError) as caught:
            answer()
        assert failure(caught.value)[:2] == (grpc.StatusCode.ABORTED, "SESSION_REPLACED")


# What is no gradient at all

NO_GRADIENTS = {
    "garbage": [b"\xff" * 100],
    "a piece that is cut off": [pieces.encode(None, 0, memoryview(bytes(100)))[:-1]],
    "garbage for a header": [pieces.encode(b"\xff\xff", 0, memoryview(b"1234"))],
    "no header": [pieces.encode(None, 0, memoryview(b"1234"))],
    "an empty message": [b""],
    "nothing": [],
}


@pytest.mark.parametrize("sent", NO_GRADIENTS.values(), ids=NO_GRADIENTS)
def test_what_is_no_gradient_is_refused(training: Training, rogue: Rogue, sent: list[bytes]) -> None:
    version = rogue.wait_until_expected(workers=3)
    with pytest.raises(grpc.RpcError) as caught:
        rogue.push(*sent)
    assert failure(caught.value)[:2] == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_VALUE")
    vector = training.gradient(version, rogue.number)
    assert rogue.push_gradient(version, vector).outcome == pb.GRADIENT_OUTCOME_USED
    rogue.leave()
    training.go_on(version, rogue.number)


def test_a_session_that_is_not_known_pushes_nothing(training: Training, rogue: Rogue) -> None:
    version = rogue.wait_until_expected(workers=3)
    vector = training.gradient(version, rogue.number)
    for session in ("", "nonsense", f"{rogue.session}0", rogue.session.replace("-", "-9", 1)):
        with pytest.raises(grpc.RpcError) as caught:
            rogue.push_gradient(version, vector, session=session)
        assert failure(caught.value)[1] in ("SESSION_NOT_FOUND", "SESSION_REPLACED")
    earlier = rogue.session
    rogue.rejoin()
    with pytest.raises(grpc.RpcError) as caught:
        rogue.push_gradient(version, vector, session=earlier)
    assert failure(caught.value)[:2] == (grpc.StatusCode.ABORTED, "SESSION_REPLACED")
    assert rogue.push_gradient(version, vector).outcome == pb.GRADIENT_OUTCOME_USED
    rogue.leave()
    training.go_on(version, rogue.number)


@pytest.mark.parametrize("build", [models.normalised, models.large])
def test_a_worker_with_another_model_cannot_join(
    training: Training, rogue: Rogue, build: Callable[[], torch.nn.Module]
) -> None:
    layout = messages.layout_message(FlatModel(build()).layout)
    with pytest.raises(grpc.RpcError) as caught:
        rogue.stub.Join(pb.JoinRequest(worker_id="another", layout=layout))
    assert failure(caught.value)[:2] == (grpc.StatusCode.FAILED_PRECONDITION, "MODEL_DIFFERS")
    rogue.leave()
    training.worker.wait_for(training.worker.outcomes[-1][0] + 3)
