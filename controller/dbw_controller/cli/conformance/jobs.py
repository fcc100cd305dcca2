"""Whether jobs are created, found, listed and deleted as the contract says."""

from functools import partial

from dbw.v1 import controller_pb2 as pb
from dbw.v1.iteration_pb2 import DECISION_REASON_FIXED
from dbw.v1.job_pb2 import JobSpec, Policy, StaticPolicy
from dbw_controller.cli.conformance.check import check, expect, expect_k, expect_refusal, require
from dbw_controller.cli.conformance.subject import WORKERS, Subject

STATIC = JobSpec(policy=Policy(static=StaticPolicy(k=3)))


@check
def create_job(subject: Subject) -> None:
    """CreateJob gives a session and the decision for the iteration that the request names."""
    name = subject.name()
    response = subject.create(name, iteration=7)
    require(response.session, "the session is empty; expected one")
    expect("the job's name", response.job.name, name)
    expect("the decision's iteration", response.job.decision.iteration, 7)
    expect_k(response.job.decision, WORKERS)


@check
def defaults_filled_in(subject: Subject) -> None:
    """A job shows the specification that it was created with, defaults filled in."""
    spec = subject.create(subject.name()).job.spec
    require(spec.policy.WhichOneof("rule"), "no rule of the policy is set; expected the controller's default")
    expect("k_min", spec.k_min, 1)
    expect("estimation.averaging_window", spec.estimation.averaging_window, 5)


@check
def attach(subject: Subject) -> None:
    """CreateJob without an iteration leaves a job where it is, with what it has learnt."""
    training = subject.training(5)
    job = subject.create(training.name).job
    expect("learnt_iterations", job.learnt_iterations, 5)
    expect("the decision", job.decision, training.decision)


@check
def go_back(subject: Subject) -> None:
    """CreateJob with an earlier iteration goes back to it, keeps what was learnt and forgets later decisions."""
    training = subject.training(5)
    job = subject.create(training.name, iteration=2).job
    expect("the decision's iteration", job.decision.iteration, 2)
    expect("learnt_iterations", job.learnt_iterations, 5)
    expect_refusal("GetDecision of a later iteration", "DECISION_NOT_FOUND", training.decided, 4)


@check
def go_forward(subject: Subject) -> None:
    """CreateJob with a later iteration goes forward to it."""
    training = subject.training(2)
    expect("the decision's iteration", subject.create(training.name, iteration=9).job.decision.iteration, 9)


@check
def another_specification(subject: Subject) -> None:
    """CreateJob of a job that exists with another specification is refused; an unset policy is the same as any."""
    name = subject.training(spec=STATIC).name
    other = JobSpec(policy=Policy(static=StaticPolicy(k=2)))
    expect_refusal("another specification", "JOB_DIFFERS", partial(subject.create, spec=other), name)
    expect("the policy", subject.create(name).job.spec.policy, STATIC.policy)


@check
def static_policy(subject: Subject) -> None:
    """The static policy decides its k in every iteration, and that reason."""
    for decision in subject.training(spec=STATIC).train(3):
        expect("k", decision.k, 3)
        expect("the reason", decision.reason, DECISION_REASON_FIXED)


@check
def bounds(subject: Subject) -> None:
    """No decision is outside of k_min and k_max, and one that they changed says what the rule chose."""
    decision = subject.training(1, JobSpec(policy=STATIC.policy, k_max=2)).decision
    expect("k", decision.k, 2)
    expect("unbounded_k", decision.unbounded_k, 3)


@check
def get_job(subject: Subject) -> None:
    """GetJob shows the newest decision, the live workers, the last loss and how many iterations were learnt from."""
    training = subject.training(3)
    job = training.job()
    expect("the decision", job.decision, training.decision)
    expect("live_workers", job.membership.live_workers, WORKERS)
    expect("learnt_iterations", job.learnt_iterations, 3)
    expect("the loss", job.loss, training.summary(2, 1).loss)


@check
def list_jobs(subject: Subject) -> None:
    """ListJobs lists each job once, in the order of the names, in pages no larger than asked for."""
    own, seen, tokens = [subject.training().name for _ in range(3)], list[str](), [""]
    while True:
        page = subject.rpc.ListJobs(pb.ListJobsRequest(page_size=2, page_token=tokens[-1]))
        require(len(page.jobs) <= 2, f"a page has {len(page.jobs)} jobs; expected at most 2, as asked for")
        seen += [job.name for job in page.jobs]
        require(seen == sorted(set(seen)), "the names are out of order, or some are listed twice")
        if not page.next_page_token:
            break
        require(page.next_page_token not in tokens, f"the page token {page.next_page_token!r} came twice")
        tokens.append(page.next_page_token)
    expect("the jobs listed", [name for name in seen if name in own], own)


@check
def delete_job(subject: Subject) -> None:
    """DeleteJob deletes: afterwards there is no such job, and its name can be used again."""
    training = subject.training(3)
    subject.rpc.DeleteJob(pb.DeleteJobRequest(job=training.name))
    expect_refusal("GetJob of a deleted job", "JOB_NOT_FOUND", training.job)
    expect("learnt_iterations", subject.create(training.name).job.learnt_iterations, 0)


@check
def delete_with_session(subject: Subject) -> None:
    """DeleteJob in a session that was replaced is refused and changes nothing; in the current one it deletes."""
    training = subject.training(3)
    old, current = training.session, subject.create(training.name).session
    delete = partial(pb.DeleteJobRequest, job=training.name, allow_missing=True)
    expect_refusal("DeleteJob", "SESSION_REPLACED", subject.rpc.DeleteJob, delete(session=old))
    expect_refusal("DeleteJob", "SESSION_NOT_FOUND", subject.rpc.DeleteJob, delete(session="unknown"))
    expect("learnt_iterations after that", training.job().learnt_iterations, 3)
    subject.rpc.DeleteJob(delete(session=current))
    expect_refusal("GetJob of a deleted job", "JOB_NOT_FOUND", training.job)


@check
def delete_missing_job(subject: Subject) -> None:
    """DeleteJob of a job that is not there is refused, unless allow_missing says that this is fine."""
    name = subject.name()
    expect_refusal("DeleteJob", "JOB_NOT_FOUND", subject.rpc.DeleteJob, pb.DeleteJobRequest(job=name))
    subject.rpc.DeleteJob(pb.DeleteJobRequest(job=name, allow_missing=True))
