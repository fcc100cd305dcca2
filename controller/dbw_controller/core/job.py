"""One training job, as the controller sees it: reports in, decisions out.

A job holds no clock, thread, file or socket. The gRPC service, the simulator and the tests drive the same object.
"""

import math
from copy import copy
from functools import cache
from itertools import compress
from typing import Self

import numpy as np
from msgspec import Raw

from dbw_controller.core.arrival_log import ArrivalLog, Sample
from dbw_controller.core.decision import Decision, Estimates
from dbw_controller.core.errors import DecisionNotFoundError, StaleIterationError, damaged_state
from dbw_controller.core.estimators.durations import DurationEstimator, Solver, empty_bytes
from dbw_controller.core.estimators.gain import GainEstimator
from dbw_controller.core.job_state import (
    REMEMBERED_DECISIONS,
    STATE_VERSION,
    JobState,
    LearntState,
    PastIteration,
    read_state,
)
from dbw_controller.core.policies import Choice, LearningPolicy, Memory, Observation, built_in_policies
from dbw_controller.core.reasons import Input, Reason
from dbw_controller.core.reports import MAX_ITERATION, Arrivals, GradientMoments, IterationSummary, Membership, Report
from dbw_controller.core.spec import JobSpec, SyncMode
from dbw_controller.core.state import encode
from dbw_controller.core.validation import integer

# After this many iterations some late worker should have reported.
LATE_ITERATIONS = 100
# What a job takes beside the samples of durations, as measured with DBW+: decisions with columns of estimates, and what
# is known of each worker and of past iterations.
JOB_BYTES, WORKER_BYTES, ESTIMATE_BYTES = 256 * 2**10, 10 * 2**10, 32


def new_job_bytes(workers: int) -> int:
    """How much memory a job of this many workers takes before it has samples, roughly."""
    return JOB_BYTES + workers * WORKER_BYTES + empty_bytes(workers)


class Job:
    """Chooses k for every iteration of one parameter server.

    `iteration` is the one that the parameter server is about to begin, with all workers idle; None if it is in the
    middle of its training. A job is for one thread at a time; other threads may run while it solves.
    """

    def __init__(
        self, spec: JobSpec, membership: Membership, iteration: int | None = 0, solver: Solver = Solver.EXACT
    ) -> None:
        iteration = None if iteration is None else integer("iteration", iteration, 0, MAX_ITERATION)
        self.spec = spec
        self.membership = membership
        self.learnt_iterations = 0
        self.gain = GainEstimator(spec.averaging_window)
        self.durations = self._duration_estimator(solver)
        self._solver = solver
        self._memory = self._new_memory()
        self._sampled_workers: int | None = None  # how many were alive at the last sample
        self.iteration = iteration or 0  # which the newest decision is for
        self._idle_at = iteration  # the iteration at whose beginning all workers are idle
        self._time_offset = 0
        self._log = ArrivalLog()
        self._log.begin(self.iteration)
        self._last: PastIteration | None = None
        self._before_last: PastIteration | None = None
        self._first_loss: float | None = None
        self.loss: float | None = None  # the last finite one that was reported
        self._missing: frozenset[Input] = frozenset()  # what the last summary did not report
        self._numbered = True  # whether the last arrivals had worker numbers
        self._decisions: dict[int, Decision] = {}
        self._decide()

    @property
    def late_arrivals(self) -> int:
        """How many reported arrivals were not waited for, since this object was made."""
        return self._log.late_arrivals

    def memory_bytes(self, live_workers: int = 0) -> int:
        """How much memory the job takes, roughly, or would take with this many live workers. It is quick to say."""
        workers = max(live_workers, self.durations.workers)
        learnt = self.gain.estimates * ESTIMATE_BYTES + self._log.waiting_bytes
        return JOB_BYTES + workers * WORKER_BYTES + self.durations.memory_bytes(workers) + learnt

    def decision(self, iteration: int | None = None) -> Decision:
        """The newest decision, or a remembered one."""
        if iteration is None:
            return self._decisions[self.iteration]
        if iteration not in self._decisions:
            raise DecisionNotFoundError(iteration, min(self._decisions), self.iteration)
        return self._decisions[iteration]

    def begin(self, membership: Membership, iteration: int | None = None) -> Decision:
        """Attach a parameter server that begins an iteration with idle workers, or goes on in the middle (None).

        Where it goes on in the middle, the newest decision stays as it was made, even if fewer workers are left.
        A job that was further goes back: it forgets what it decided and was told from there on, but not what it has
        learnt; at 0, where another training begins, all but what it has learnt about durations.
        """
        iteration = None if iteration is None else integer("iteration", iteration, 0, MAX_ITERATION)
        self.catch_up()
        self._set_membership(membership)
        if iteration is None:
            return self.decision()
        self._forget_from(iteration)
        self.iteration = self._idle_at = iteration
        self._log.begin(iteration)
        return self._decide()

    def _forget_from(self, iteration: int) -> None:
        self._time_offset += max(self.iteration - iteration, 0)  # samples do not get younger
        then = self._decisions.get(iteration)
        self._decisions = {i: decision for i, decision in self._decisions.items() if i < iteration}
        self.gain.forget_from(iteration)
        while self._last is not None and self._last.iteration >= iteration:
            self._last, self._before_last = self._before_last, None
            self.loss = None if then is None else then.estimates.loss
        self._memory.reset(new_training=iteration == 0)
        if iteration == 0:
            self.gain = GainEstimator(self.spec.averaging_window)
            self._first_loss = self.loss = None

    def report(self, report: Report) -> Decision | None:
        """Take a report in. With a summary, returns the decision for the next iteration: always the same one."""
        summary = report.summary
        if summary is not None and summary.iteration < self.iteration - 1:
            raise StaleIterationError(summary.iteration, self.iteration)
        self.catch_up()
        if summary is not None:
            self._log.foresee_end(summary.iteration)
            if summary.previous_k is not None:
                self._add(self._log.learn_previous_k(summary.iteration, summary.previous_k))
        if report.membership is not None:
            self.durations.grow(report.membership.live_workers)  # arrivals may be of workers that it tells of
        for arrivals in report.arrivals:
            if arrivals.iteration == self._idle_at:
                self._begin_idle()
            self._add(self._log.arrive(arrivals, self.durations.workers))
            self._numbered = arrivals.workers is not None
        self._memory.arrived(report.arrivals)
        new = summary is not None and summary.iteration >= self.iteration
        if summary is not None and new:
            self._end(summary)
        if report.membership is not None:
            self._set_membership(report.membership)
        if summary is None:
            return None
        return self._decide() if new else self.decision()

    def _begin_idle(self) -> None:
        """Where all workers were idle at the beginning, that is as if all had been waited for."""
        if self._idle_at == self.iteration and self.membership.live_workers > 0:
            self._add(self._log.learn_previous_k(self.iteration, self.membership.live_workers))

    def _end(self, summary: IterationSummary) -> None:
        if summary.iteration == self._idle_at:
            self._begin_idle()
        self._add(self._log.end(summary.iteration, summary.k, self.membership.live_workers))
        self.gain.observe(summary)
        self._memory.ended(summary)
        loss = summary.loss if summary.loss is not None and math.isfinite(summary.loss) else None
        if loss is not None:
            self.loss = loss
            self._first_loss = loss if self._first_loss is None else self._first_loss
        self._before_last, self._last = self._last, PastIteration(summary.iteration, summary.k, loss)
        self._missing = _missing_from(summary)
        self.iteration = summary.iteration + 1
        self.learnt_iterations = min(self.learnt_iterations + 1, MAX_ITERATION)  # beyond, no snapshot is read

    def catch_up(self) -> None:
        """Do what can wait until a decision is on its way, unless it is done. Otherwise the next report has to wait."""
        self._memory.catch_up(self.membership)

    def _new_memory(self) -> Memory:
        policy = self.spec.policy
        interrupted = self.spec.sync_mode is SyncMode.PUSH_INTERRUPT
        return policy.memory(interrupted) if isinstance(policy, LearningPolicy) else Memory()

    def _time(self) -> int:
        """How old the job is, in iterations: unlike their number it never goes back."""
        return self.iteration + self._time_offset

    def _add(self, samples: list[Sample]) -> None:
        if samples and self.membership.live_workers != self._sampled_workers:
            self._discount()
        for sample in samples:
            if sample.h <= self.durations.workers:
                self.durations.add(sample.h, sample.first, sample.seconds, sample.iteration + self._time_offset)

    def _discount(self) -> None:
        """Keep what was learnt with another number of workers, but the less the more workers have come or gone."""
        before, now = self._sampled_workers, self.membership.live_workers
        if before is not None and now not in (0, before):
            self.durations.discount(before / abs(now - before), self._time())
        self._sampled_workers = now or before

    def _set_membership(self, membership: Membership) -> None:
        self.membership = membership
        self.durations.grow(membership.live_workers)

    def _duration_estimator(self, solver: Solver) -> DurationEstimator:
        spec, workers = self.spec, max(self.membership.live_workers, 1)
        return DurationEstimator(workers, spec.sample_half_life, spec.unsampled_duration, solver)

    def _observe(self) -> Observation:
        previous = _if_of(self.iteration - 1, self._last)
        before = _if_of(self.iteration - 2, self._before_last)
        in_a_row = previous is not None and previous.loss is not None
        return Observation(
            iteration=self.iteration,
            workers=max(self.membership.live_workers, 1),
            learnt_iterations=self.learnt_iterations,
            previous_k=previous.k if previous is not None else None,
            loss=self.loss,
            loss_before=before.loss if before is not None and in_a_row else None,
            first_loss=self._first_loss,
            gain=self.gain.estimate(),
            duration_estimator=self.durations,
            memory=self._memory,
        )

    def _decide(self) -> Decision:
        seen = self._observe()
        try:
            return self._remember(seen, self.spec.policy.choose(seen))
        except Exception as error:
            # A policy may be anybody's. What was reported is learnt already, so that a retry must find a decision.
            explanation = f"the policy failed ({error!r}): all {seen.workers} workers"
            self._remember(seen, Choice(seen.workers, Reason.ALL_WORKERS, explanation))
            raise

    def _remember(self, seen: Observation, choice: Choice) -> Decision:
        chosen = integer("the policy's k", choice.k, 1, seen.workers)
        k = self.spec.bound(chosen, seen.workers)
        decision = Decision(
            iteration=self.iteration,
            k=k,
            reason=choice.reason,
            live_workers=self.membership.live_workers,
            unbounded_k=None if chosen == k else chosen,
            deadline_seconds=choice.deadline(k),
            missing_inputs=self._missing_inputs(),
            estimates=Estimates(seen.gain, choice.gains, choice.durations, seen.loss, choice.explanation),
        )
        self._decisions[self.iteration] = decision
        while len(self._decisions) > REMEMBERED_DECISIONS:
            del self._decisions[next(iter(self._decisions))]
        return decision

    def _missing_inputs(self) -> frozenset[Input]:
        if self.learnt_iterations == 0:
            return frozenset()
        missing = self._unreported()
        interrupted = self.spec.sync_mode is SyncMode.PUSH_INTERRUPT  # nobody finishes late
        if not interrupted and self._log.ended_without_late > LATE_ITERATIONS:
            missing = missing | {Input.LATE_ARRIVALS}
        return self.spec.policy.inputs & missing

    def _unreported(self) -> frozenset[Input]:
        return self._missing if self._numbered else self._missing | {Input.WORKER_NUMBERS}

    def learnt(self) -> bytes:
        """What the job has learnt, encoded: for another job to adopt, or this one after a loss."""
        return encode(self._learnt())

    def _learnt(self) -> LearntState:
        self.catch_up()
        return LearntState(
            version=STATE_VERSION,
            learnt_iterations=self.learnt_iterations,
            workers=self._sampled_workers,
            first_loss=self._first_loss,
            loss=self.loss,
            gain=self.gain.snapshot(),
            durations=self.durations.snapshot(self._time()),
            policy=type(self.spec.policy).__name__,
            memory=Raw(encode(self._memory.snapshot())),
        )

    def adopt(self, learnt: bytes, only_if_newer: bool = False) -> Decision:
        """Replace what the job has learnt, and decide again for its iteration. A state that fails changes nothing.

        With `only_if_newer` neither does one that has learnt from no more iterations than the job.
        """
        trial = copy(self)
        trial._decisions = self._decisions.copy()
        with damaged_state():
            state = read_state(learnt, LearntState)
            if only_if_newer and state.learnt_iterations <= self.learnt_iterations:
                return self.decision()
            trial._learn(state)
        trial.gain.forget_from(0)  # another job's last iteration is not the one before this job's next
        trial._memory.reset(new_training=False)
        trial._last = trial._before_last = None
        decision = trial._decide()
        vars(self).update(vars(trial))
        return decision

    def _learn(self, learnt: LearntState) -> None:
        gain = GainEstimator(self.spec.averaging_window)
        gain.restore(learnt.gain)
        durations = self._duration_estimator(self._solver)
        durations.grow(self.durations.workers)  # arrivals of as many ranks may wait
        durations.restore(learnt.durations, self._time())
        memory = self._new_memory()
        if learnt.policy == type(self.spec.policy).__name__:  # other policies learn something else
            memory.restore(learnt.memory)
        self.gain, self.durations, self._memory = gain, durations, memory
        self.learnt_iterations, self._sampled_workers = learnt.learnt_iterations, learnt.workers
        self._first_loss, self.loss = learnt.first_loss, learnt.loss

    def snapshot(self) -> bytes:
        """The whole job, encoded."""
        return encode(self.state())

    def state(self) -> JobState:
        """The whole job, as it is now: nothing in it changes with the job."""
        live_workers, workers = self.membership.live_workers, self.membership.workers
        return JobState(
            version=STATE_VERSION,
            spec=self.spec.snapshot(),
            membership=(live_workers, None if workers is None else list(workers)),
            iteration=self.iteration,
            idle_at=self._idle_at,
            time_offset=self._time_offset,
            log=self._log.snapshot(),
            ended=(self._before_last, self._last),
            missing=sorted(item.name for item in self._unreported()),
            decisions=[decision.snapshot() for decision in self._decisions.values()],
            learnt=self._learnt(),
        )

    @classmethod
    def restore(cls, snapshot: bytes, solver: Solver = Solver.EXACT) -> Self:
        """The job that a snapshot was taken of."""
        with damaged_state():
            state = read_state(snapshot, JobState)
            job = cls(state.spec.spec(), Membership(*state.membership), None, solver)
            job.iteration, job._idle_at, job._time_offset = state.iteration, state.idle_at, state.time_offset
            job._log.restore(state.log)
            job._before_last, job._last = state.ended
            unreported = frozenset(Input[name] for name in state.missing)
            job._missing, job._numbered = unreported - {Input.WORKER_NUMBERS}, Input.WORKER_NUMBERS not in unreported
            job._learn(state.learnt)
            job._decisions = {decision.iteration: decision.decision() for decision in state.decisions}
            job.decision()
        return job


def _if_of(iteration: int, ended: PastIteration | None) -> PastIteration | None:
    return ended if ended is not None and ended.iteration == iteration else None


def _missing_from(summary: IterationSummary) -> frozenset[Input]:
    moments = summary.moments
    return _inputs(
        summary.loss is None,
        summary.learning_rate is None,
        moments is None or (summary.k > 1 and moments.sum_squared_norms is None and moments.variance is None),
        moments is None or moments.within_worker_variance is None,
    )


@cache  # of sixteen sets, so that none is made for every decision
def _inputs(loss: bool, learning_rate: bool, moments: bool, within_worker_variance: bool) -> frozenset[Input]:
    inputs = (Input.LOSS, Input.LEARNING_RATE, Input.MOMENTS, Input.WITHIN_WORKER_VARIANCE)
    return frozenset(compress(inputs, (loss, learning_rate, moments, within_worker_variance)))


def warm_up() -> None:
    """Compile all kernels that our policies use now, rather than when the first decision waits for it."""
    for policy in built_in_policies():
        job = Job(JobSpec(policy), Membership(2))
        for iteration in range(3):  # gains are known after two iterations, and durations of workers are a step behind
            moments = GradientMoments(mean_squared_norm=1.0, sum_squared_norms=4.0)
            summary = IterationSummary(iteration, 2, 1.0, loss=1.0, learning_rate=1.0, moments=moments)
            job.report(Report([Arrivals(iteration, np.ones(2), workers=[0, 1])], summary))
