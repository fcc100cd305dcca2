"""What the gate lets in, on a virtual clock."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dbw_runtime.callers import Caller
from dbw_runtime.failure import StatusError
from dbw_runtime.gate import MAX_DELAY, CallLimits, Gate
from dbw_runtime.security import ANYBODY
from tests.unit.controller.server.jobs import run, virtual_clock


class FakeCall:
    """A call that remembers what ended it."""

    def __init__(self, identity: str = "", is_stream: bool = False) -> None:
        self.is_stream = is_stream
        self.identity, self.caller = identity, Caller(identity)
        self.task: Any = None
        self.ended_by: Exception | None = None

    def end(self, error: Exception) -> None:
        self.ended_by = error

    def stop_waiting(self) -> None:
        pass

    @property
    def is_ended(self) -> bool:
        """Whether the gate has ended the call."""
        return self.ended_by is not None

    def limit(self) -> str | None:
        """The limit that ended the call."""
        return None if self.ended_by is None else limit_of(self.ended_by)


def limit_of(error: Exception) -> str:
    """The limit that an error is about."""
    assert isinstance(error, StatusError)
    assert error.reason == "LIMIT_REACHED"
    quota: Any = error.details[0]
    subject: str = quota.violations[0].subject
    return subject


def claims(limits: CallLimits, claim: Callable[[Gate], Coroutine[Any, Any, None]]) -> None:
    """Check something of a gate that is open, on a virtual clock."""

    async def claimed() -> None:
        gate = Gate(ANYBODY, limits, Counter[str]().update, virtual_clock)
        gate.is_open = True
        await claim(gate)

    run(claimed())


def admitted(gate: Gate, identity: str = "", heard: bool = True) -> FakeCall:
    call = FakeCall(identity)
    gate.admit(call)
    if heard:
        gate.heard(call)
    return call


def refusal(gate: Gate, identity: str = "") -> str:
    """The limit because of which a call is not admitted."""
    with pytest.raises(StatusError) as caught:
        gate.admit(FakeCall(identity))
    return limit_of(caught.value)


def test_calls_that_were_heard_keep_their_places_and_silent_ones_make_room() -> None:
    async def claim(gate: Gate) -> None:
        first, silent, third = admitted(gate), admitted(gate, heard=False), admitted(gate)
        fourth = admitted(gate)
        assert (first.limit(), silent.limit(), third.limit()) == (None, "max_calls", None)
        assert refusal(gate) == "max_calls"
        gate.discard(fourth)
        admitted(gate)

    claims(CallLimits(calls=3), claim)


def test_the_newest_calls_stay_where_that_is_asked_for() -> None:
    async def claim(gate: Gate) -> None:
        first, second = admitted(gate), admitted(gate)
        third = admitted(gate)
        assert (first.limit(), second.limit(), third.limit()) == ("max_calls", None, None)

    claims(CallLimits(calls=2, newest_first=True), claim)


def test_an_identity_has_only_so_many_calls_and_nobody_s_are_not_counted() -> None:
    async def claim(gate: Gate) -> None:
        calls = [admitted(gate, "alice") for _ in range(2)]
        assert refusal(gate, "alice") == "max_identity_calls"
        admitted(gate, "bob")
        for _ in range(3):
            admitted(gate)
        gate.discard(calls[0])
        gate.discard(calls[0])  # a second time is no second call
        admitted(gate, "alice")
        assert refusal(gate, "alice") == "max_identity_calls"

    claims(CallLimits(identity_calls=2), claim)


def test_an_identity_that_is_too_fast_is_refused_until_it_is_due_and_others_are_not() -> None:
    async def claim(gate: Gate) -> None:
        for _ in range(10):
            gate.refuse_if_too_fast("alice")
        for _ in range(3):  # what is refused does not count
            with pytest.raises(StatusError) as caught:
                gate.refuse_if_too_fast("alice")
            assert limit_of(caught.value) == "max_identity_rate"
            retry: Any = caught.value.details[1]
            assert retry.retry_delay.ToNanoseconds() == pytest.approx(1e8)
        gate.refuse_if_too_fast("bob")
        for _ in range(100):
            gate.refuse_if_too_fast("")
        await asyncio.sleep(0.1000001)
        gate.refuse_if_too_fast("alice")

    claims(CallLimits(identity_rate=10.0), claim)


def test_a_stream_that_is_too_fast_waits_the_longer_the_more_it_sends() -> None:
    async def claim(gate: Gate) -> None:
        assert [gate.delay("alice") for _ in range(10)] == [0.0] * 10
        assert gate.delay("alice") == pytest.approx(0.1)
        assert gate.delay("alice") == pytest.approx(0.2)
        assert gate.delay("") == 0.0
        await asyncio.sleep(10.0)
        assert [gate.delay("alice") for _ in range(10)] == [0.0] * 10
        assert gate.delay("alice") > 0.0, "an hour without requests is not saved up"

    claims(CallLimits(identity_rate=10.0), claim)


def test_identities_that_are_gone_are_forgotten() -> None:
    async def claim(gate: Gate) -> None:
        for number in range(100):
            await asyncio.sleep(2.0)
            gate.delay(f"identity-{number}")
        assert len(gate._used_until) <= 11

    claims(CallLimits(calls=10), claim)


def test_a_call_without_a_request_in_time_is_ended() -> None:
    async def claim(gate: Gate) -> None:
        silent, heard = admitted(gate, heard=False), admitted(gate)
        await asyncio.sleep(29.0)
        late = admitted(gate, heard=False)
        assert silent.limit() is None
        await asyncio.sleep(1.5)
        assert (silent.is_ended, heard.is_ended, late.is_ended) == (True, False, False)
        assert isinstance(silent.ended_by, StatusError)
        assert silent.ended_by.reason == "NOT_READY"
        await asyncio.sleep(30.0)
        assert (heard.is_ended, late.is_ended) == (False, True)
        assert list(gate.calls) == [heard]

    claims(CallLimits(first_request_seconds=30.0), claim)


def test_a_call_whose_response_is_not_read_in_time_is_ended() -> None:
    async def claim(gate: Gate) -> None:
        reader, stuck = admitted(gate), admitted(gate)
        for call in (reader, stuck):
            gate.begin_response(call)
        gate.end_response(reader)
        await asyncio.sleep(121.0)
        assert (reader.is_ended, stuck.is_ended) == (False, True)

    claims(CallLimits(reading_seconds=120.0), claim)


def test_a_stream_has_longer_for_its_first_request_and_makes_room_all_the_same() -> None:
    async def claim(gate: Gate) -> None:
        stream = FakeCall(is_stream=True)
        gate.admit(stream)
        await asyncio.sleep(599.0)
        assert not stream.is_ended
        await asyncio.sleep(2.0)
        assert stream.is_ended
        another = FakeCall(is_stream=True)
        gate.admit(another)
        for _ in range(2):
            admitted(gate)
        assert another.limit() == "max_calls"

    claims(CallLimits(calls=2), claim)


def test_requests_of_streams_that_were_given_up_do_not_keep_an_identity_out_for_long() -> None:
    async def claim(gate: Gate) -> None:
        for _ in range(1000):
            gate.delay("alice")
        await asyncio.sleep(MAX_DELAY + 0.2)
        gate.refuse_if_too_fast("alice")

    claims(CallLimits(identity_rate=10.0), claim)
