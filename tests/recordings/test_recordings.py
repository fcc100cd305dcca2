"""Decisions are those that were recorded, bit for bit: whatever changes inside, nobody outside can tell."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dbw.v1 import controller_pb2 as pb
from dbw.v1.iteration_pb2 import DecisionReason, EndCause, MissingInput
from tests.recordings.comparison import answer_of, differences
from tests.recordings.player import DATA, FLAGS, Player, Step, names, read
from tests.servers import Controller, controller

CONVERSATIONS = DATA / "conversations"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    """A controller for all conversations that do not restart it."""
    with controller("--state-dir", str(tmp_path_factory.mktemp("state")), *FLAGS) as running:
        yield running


@pytest.fixture
def empty(server: Controller) -> Iterator[Controller]:
    """The same; no job is left afterwards, even if a conversation does not come to its end."""
    yield server
    with server.stub() as stub:
        while jobs := stub.ListJobs(pb.ListJobsRequest()).jobs:
            for job in jobs:
                stub.DeleteJob(pb.DeleteJobRequest(job=job.name))


@pytest.mark.parametrize("name", names(CONVERSATIONS))
def test_a_conversation_goes_as_recorded(name: str, empty: Controller, tmp_path: Path) -> None:
    about, steps = read(CONVERSATIONS, name)
    with Player(folder=tmp_path) if about["restarts"] else Player(empty) as player:
        for number, step in enumerate(steps, 2):
            found = list(differences(answer_of(step), player.play(step)))
            assert not found, f"line {number} of the recording ({step.get('rpc', step.get('do'))}): {found[:10]}"


def decisions(step: Step) -> Iterator[Step]:
    """The decisions in the answer to a step."""
    for response in [step.get("response"), *step.get("responses", [])]:
        if response:
            job = response.get("job", {})
            yield from (found for found in (response.get("decision"), job.get("decision")) if found)


def requests(step: Step) -> list[Step]:
    """The requests of a step."""
    return [*([step["request"]] if "request" in step else []), *step.get("requests", [])]


@pytest.fixture(scope="module")
def all_steps() -> list[Step]:
    """The steps of all conversations."""
    return [step for name in names(CONVERSATIONS) for step in read(CONVERSATIONS, name)[1]]


def test_recordings_have_decisions_of_every_kind(all_steps: list[Step]) -> None:
    made = [decision for step in all_steps for decision in decisions(step)]
    never = {"DECISION_REASON_UNSPECIFIED", "DECISION_REASON_CUSTOM"}
    assert {decision["reason"] for decision in made} == set(DecisionReason.keys()) - never
    missing = {item for decision in made for item in decision.get("missing_inputs", [])}
    unused = {"MISSING_INPUT_UNSPECIFIED", "MISSING_INPUT_WITHIN_WORKER_VARIANCE"}  # which no policy insists on
    assert missing == set(MissingInput.keys()) - unused
    assert {"deadline_seconds", "unbounded_k"} <= {key for decision in made for key in decision}
    assert {decision["live_workers"] for decision in made if "live_workers" in decision} >= {1, 4, 16, 40, 70}


def test_recordings_have_jobs_and_reports_of_every_kind(all_steps: list[Step]) -> None:
    jobs = [step["response"]["job"] for step in all_steps if step.get("rpc") == "CreateJob" and "response" in step]
    rules = {(*job["spec"]["policy"], job["spec"]["sync_mode"].removeprefix("SYNC_MODE_")) for job in jobs}
    assert {rule for rule, _ in rules} == {"dbw", "blind_dbw", "dbw_plus", "static", "sync", "adasync"}
    for rule in ("dbw", "blind_dbw", "dbw_plus"):
        assert {mode for other, mode in rules if other == rule} == {"PUSH_WAIT", "PUSH_INTERRUPT", "PULL"}
    summaries = [request["summary"] for step in all_steps for request in requests(step) if "summary" in request]
    causes = {summary.get("end_cause", "END_CAUSE_UNSPECIFIED") for summary in summaries}
    assert causes - {9} == set(EndCause.keys())
    reasons = {step["error"]["reason"] for step in all_steps if "error" in step}
    others = {"STATE_FORMAT_UNKNOWN", "STATE_DAMAGED", "SESSION_NOT_FOUND", "SESSION_REPLACED", "STALE_ITERATION"}
    usual = {"INVALID_VALUE", "JOB_NOT_FOUND", "JOB_DIFFERS", "DECISION_NOT_FOUND", "LIMIT_REACHED"}
    assert reasons == others | usual
