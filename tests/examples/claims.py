"""What every example claims to be: a training whose k is the controller's, reported as the contract asks for."""

from collections.abc import Iterator
from statistics import mean

from tests.examples.recorder import RecordedJob


def assert_integrated(job: RecordedJob, workers: int, iterations: int) -> None:
    """Assert that an example trained, did as decided, and told the truth about it."""
    assert_all_reported(job, iterations)
    assert job.decisions == job.replay(), "the same policy in process decides the same"
    k = [summary.k for summary in job.summaries]
    assert k == list(expected_k(job, workers)), "it waits for as many as decided"
    fallbacks = [summary.fallback for summary in job.summaries]
    assert fallbacks == sorted(fallbacks, reverse=True), "it is on fallback until the first decision comes, if at all"
    assert min(k) < workers, "there was something to decide"
    assert job.late, "workers that were not waited for are heard of"
    assert job.findings() == [], "`dbw doctor` finds nothing"
    losses = [summary.loss for summary in job.summaries]
    assert mean(losses[-5:]) < 0.5 * mean(losses[:5]), "it learns"
    assert_times_are_since_publication(job)


def expected_k(job: RecordedJob, workers: int) -> Iterator[int]:
    """What k has to be in each iteration: that of the decision in use, and on fallback the last one."""
    decided, k = {0: workers} | {decision.iteration: decision.k for decision in job.decisions}, workers
    for summary in job.summaries:
        if not summary.fallback:
            k = decided[summary.decision_iteration if summary.HasField("decision_iteration") else summary.iteration]
        yield k


def assert_all_reported(job: RecordedJob, iterations: int) -> None:
    """Assert that iterations are reported in order without a gap; those at the end may lack: an answer was missing."""
    reported = [summary.iteration for summary in job.summaries]
    assert reported == list(range(len(reported)))
    assert len(reported) <= iterations


def assert_times_are_since_publication(job: RecordedJob) -> None:
    """Assert that the k-th arrival ends its iteration, and that what came later arrived later."""
    seconds: dict[int, dict[int, float]] = {}
    for arrivals in job.arrivals:
        ranks = enumerate(arrivals.seconds, start=arrivals.preceding + 1)
        seconds.setdefault(arrivals.iteration, {}).update(ranks)
    for summary in job.summaries:
        by_rank = seconds[summary.iteration]
        assert sorted(by_rank.values()) == [by_rank[rank] for rank in sorted(by_rank)]
        assert by_rank[summary.k] <= summary.duration_seconds
