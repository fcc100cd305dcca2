"""Whether reports are taken in, and answered, as the contract says."""

from dbw.v1 import controller_pb2 as pb
from dbw.v1.iteration_pb2 import Arrivals, EndedIteration, Membership
from dbw.v1.job_pb2 import JobSpec
from dbw_controller.cli.conformance.check import check, expect, expect_k, expect_refusal, require
from dbw_controller.cli.conformance.subject import DBW, WORKERS, Subject

ITERATIONS = 12


@check
def next_decision(subject: Subject) -> None:
    """EndIteration returns the decision for the iteration after, with a k between 1 and the live workers."""
    for iteration, decision in enumerate(subject.training().train(ITERATIONS)):
        expect("the decision's iteration", decision.iteration, iteration + 1)
        expect_k(decision, WORKERS)


@check
def repeated_summary(subject: Subject) -> None:
    """A repeated EndIteration gets the same decision, and counts once."""
    training = subject.training(ITERATIONS)
    request = training.request(ITERATIONS, include_estimates=True)
    first, second = (subject.rpc.EndIteration(request).decision for _ in range(2))
    expect("the second answer", second, first)
    expect("learnt_iterations", training.job().learnt_iterations, ITERATIONS + 1)


@check
def get_decision(subject: Subject) -> None:
    """GetDecision returns the last decisions that were made, the newest one where no iteration is named."""
    training = subject.training()
    decisions = training.train(3)
    for decision in decisions[-2:]:  # how many more are remembered is the controller's choice
        expect("the decision", training.decided(decision.iteration), decision)
    expect("the newest decision", training.decided(), decisions[-1])


@check
def decision_not_found(subject: Subject) -> None:
    """GetDecision for an iteration that is still to come is refused."""
    expect_refusal("GetDecision", "DECISION_NOT_FOUND", subject.training(2).decided, 3)


@check
def estimates_on_request(subject: Subject) -> None:
    """A decision holds its estimates where the request asks for them, and only there."""
    training = subject.training(2)
    require(not training.end(2).HasField("estimates"), "there are estimates; expected none, as none were asked for")
    require(training.end(3, include_estimates=True).HasField("estimates"), "there are no estimates; expected some")


@check
def stream_and_single_calls(subject: Subject) -> None:
    """The stream and single calls give the same decisions for the same reports."""
    single, streamed = subject.training(), subject.training()
    with subject.stream() as stream:
        for iteration in range(ITERATIONS):
            streamed.decision = stream.ask(streamed.request(iteration))
            expect(f"the stream's decision after iteration {iteration}", streamed.decision, single.end(iteration))
        expect("what else was answered", stream.finish(), [])


@check
def stream_answers_summaries(subject: Subject) -> None:
    """A stream answers each report that has a summary, in order, and no other."""
    training = subject.training()
    with subject.stream() as stream:
        for iteration in range(3):
            request = training.request(iteration)
            stream.send(pb.CoordinateRequest(job=request.job, session=request.session, arrivals=request.arrivals))
            stream.send(request)
        answered = [response.decision.iteration for response in stream.finish()]
    expect("the iterations decided for", answered, [1, 2, 3])


@check
def arrivals_in_parts(subject: Subject) -> None:
    """Arrivals reported one by one before the summary mean the same as all of them with it."""
    whole, parts = subject.training(), subject.training()
    for iteration in range(ITERATIONS):
        arrivals = parts.arrivals(iteration)
        for rank, (seconds, worker) in enumerate(zip(arrivals.seconds, arrivals.workers, strict=True)):
            part = Arrivals(iteration=iteration, preceding=rank, seconds=[seconds], workers=[worker])
            parts.report(arrivals=[part])
        answer, expected = parts.end(iteration, arrivals=[]), whole.end(iteration)
        expect(f"the decision after iteration {iteration}", answer, expected)


@check
def repeated_arrivals(subject: Subject) -> None:
    """Arrivals count once by their rank, however often they are reported, also after the end of their iteration."""
    once, often = subject.training(), subject.training()
    for iteration in range(ITERATIONS):
        arrivals = often.arrivals(iteration)
        changed = Arrivals(iteration=iteration, seconds=[9.0] * WORKERS)  # the ranks are known: this says nothing
        expected = once.end(iteration, include_estimates=True)
        answer = often.end(iteration, include_estimates=True, arrivals=[arrivals, arrivals, changed])
        often.report(arrivals=[arrivals, changed])
        expect(f"the decision after iteration {iteration}", answer, expected)


@check
def late_arrivals(subject: Subject) -> None:
    """Arrivals after the end of their iteration count as those before it do, and change no decision that was made."""
    two = JobSpec(policy=DBW.policy, k_min=2, k_max=2)  # a fixed k, with a policy that estimates durations
    prompt, late = subject.training(spec=two), subject.training(spec=two)
    for iteration in range(ITERATIONS):
        prompt.end(iteration)
        seconds = late.arrivals(iteration).seconds
        late.end(iteration, arrivals=[Arrivals(iteration=iteration, seconds=seconds[:2], workers=[0, 1])])
        late.report(arrivals=[Arrivals(iteration=iteration, preceding=2, seconds=seconds[2:], workers=[2, 3])])
        expect("the decision after late arrivals", late.job().decision, late.decision)
    expected, answer = (training.end(ITERATIONS, include_estimates=True) for training in (prompt, late))
    expect("the next decision", answer, expected)


@check
def missing_iterations(subject: Subject) -> None:
    """Iterations may be missing: the next summary is answered all the same."""
    training = subject.training(2)
    expect("the decision's iteration", training.end(7).iteration, 8)


@check
def preceding_iterations(subject: Subject) -> None:
    """Iterations that precede a summary in its request count as if each had been a request, and count once."""
    single, together = (subject.training(spec=JobSpec(policy=DBW.policy, k_min=2, k_max=2)) for _ in range(2))
    ended: list[EndedIteration] = []
    for iteration in range(ITERATIONS):
        request = single.request(iteration)
        expected = single.end(iteration, include_estimates=True)
        ended.append(EndedIteration(arrivals=request.arrivals, summary=request.summary))
        if iteration % 3 == 2:
            about = {"arrivals": request.arrivals, "summary": request.summary, "preceding": ended[-4:-1]}
            answer = together.end(iteration, include_estimates=True, **about)  # of three, the first is known
            expect(f"the decision after iteration {iteration}", answer, expected)
    expect("learnt_iterations", together.job().learnt_iterations, ITERATIONS)


@check
def stale_iteration(subject: Subject) -> None:
    """A summary of an iteration before the last one is refused, and the error names the iteration that is expected."""
    training = subject.training(5)
    info, _ = expect_refusal("a summary of iteration 2", "STALE_ITERATION", training.end, 2)
    expect("`iteration` in ErrorInfo.metadata", info.metadata.get("iteration"), "5")


@check
def fewer_workers(subject: Subject) -> None:
    """When workers are lost, k is at most the number of those that are left."""
    training = subject.training(ITERATIONS)
    left = Membership(live_workers=2, workers=[0, 2])
    training.report(membership=left)
    expect("the job's membership", training.job().membership, left)
    expect_k(training.end(ITERATIONS), 2)
    expect_k(training.end(ITERATIONS + 1, membership=Membership(live_workers=1)), 1)


@check
def no_worker(subject: Subject) -> None:
    """While no worker is alive, k is 1."""
    training = subject.training(2)
    decision = training.end(2, membership=Membership(live_workers=0))
    expect("k", decision.k, 1)
    expect("live_workers", decision.live_workers, 0)
