"""Between the messages of the contract and what the controller works with, in both directions."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from enum import Enum
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message

from dbw.v1 import controller_pb2, iteration_pb2, job_pb2, sync_mode_pb2
from dbw_controller.core.decision import Decision
from dbw_controller.core.diagnosis import Finding, FindingKind
from dbw_controller.core.errors import InvalidValueError
from dbw_controller.core.estimators.durations import UnsampledDuration
from dbw_controller.core.policies import POLICIES, Policy, create_policy, policy_name, policy_parameters
from dbw_controller.core.reasons import Input, Reason
from dbw_controller.core.reports import Arrivals, EndCause, GradientMoments, IterationSummary, Membership, Report
from dbw_controller.core.spec import JobSpec, SyncMode

AnyReport = controller_pb2.CoordinateRequest | controller_pb2.EndIterationRequest | controller_pb2.ReportRequest
E = TypeVar("E", bound=Enum)
# The rules of the contract by the names that policies are registered with here.
RULES = {name: name for name in ("dbw", "static", "sync", "adasync")} | {"b-dbw": "blind_dbw", "dbw-plus": "dbw_plus"}
# Where the contract has what the core calls by another name.
SPEC_PATHS = {
    "averaging_window": "estimation.averaging_window",
    "sample_half_life": "estimation.sample_half_life_iterations",
}
POLICY_NAMES = {rule: name for name, rule in RULES.items()}


def _numbers(kind: type[E], descriptor: EnumDescriptor, prefix: str) -> dict[E, Any]:
    """What the members of an enum are on the wire; each enum has a type of its own in the stubs."""
    return {member: descriptor.values_by_name[f"{prefix}_{member.name}"].number for member in kind}


REASONS = _numbers(Reason, iteration_pb2.DecisionReason.DESCRIPTOR, "DECISION_REASON")
INPUTS = _numbers(Input, iteration_pb2.MissingInput.DESCRIPTOR, "MISSING_INPUT")
END_CAUSES = _numbers(EndCause, iteration_pb2.EndCause.DESCRIPTOR, "END_CAUSE")
SYNC_MODES = _numbers(SyncMode, sync_mode_pb2.SyncMode.DESCRIPTOR, "SYNC_MODE")
UNSAMPLED = _numbers(UnsampledDuration, job_pb2.UnsampledDuration.DESCRIPTOR, "UNSAMPLED_DURATION")
FINDING_KINDS = _numbers(FindingKind, controller_pb2.FindingKind.DESCRIPTOR, "FINDING_KIND")


def _members(numbers: dict[E, Any], default: E) -> dict[int, E]:
    return {0: default} | {number: member for member, number in numbers.items()}


END_CAUSE_OF = _members(END_CAUSES, EndCause.K_REACHED)
SYNC_MODE_OF = _members(SYNC_MODES, SyncMode.PUSH_WAIT)
UNSAMPLED_OF = _members(UNSAMPLED, UnsampledDuration.MIDPOINT)


def _member(members: dict[int, E], field: str, number: int) -> E:
    if number not in members:
        raise InvalidValueError(field, number, f"one of {', '.join(map(str, members))}")
    return members[number]


def _given(message: Message, field: str) -> Any:  # noqa: ANN401
    """The content of an optional field; None if it is not set."""
    return getattr(message, field) if message.HasField(field) else None


@contextmanager
def _within(path: Callable[[str], str]) -> Iterator[None]:
    """Name fields as the request does."""
    try:
        yield
    except InvalidValueError as error:
        raise InvalidValueError(path(error.field), error.value, error.rule) from None


def one_by_one(request: AnyReport) -> list[AnyReport]:
    """A request as several, each about at most one iteration, oldest first."""
    if isinstance(request, controller_pb2.ReportRequest) or not request.preceding:
        return [request]
    iterations = [*(ended.summary.iteration for ended in request.preceding), request.summary.iteration]
    if not request.HasField("summary") or any(a >= b for a, b in pairwise(iterations)):
        raise InvalidValueError("preceding", iterations, "of iterations before the summary's, oldest first")
    kind, job, session = type(request), request.job, request.session
    earlier = [kind(job=job, session=session, arrivals=e.arrivals, summary=e.summary) for e in request.preceding]
    last = deepcopy(request)
    last.ClearField("preceding")
    return [*earlier, last]


def report_from(request: AnyReport) -> Report:
    """What a parameter server reports; what precedes it is left to `one_by_one`."""
    summary = None
    if not isinstance(request, controller_pb2.ReportRequest) and request.HasField("summary"):
        summary = summary_from(request.summary)
    return Report(
        arrivals=_arrivals_from(request.arrivals),
        summary=summary,
        membership=membership_from(request.membership) if request.HasField("membership") else None,
    )


def _arrivals_from(batches: Iterable[iteration_pb2.Arrivals]) -> list[Arrivals]:
    arrivals = []
    try:
        for message in batches:
            seconds: Any = message.seconds  # which becomes an array
            workers = _copied(message.workers) or None  # the message's own would keep all of the request
            arrivals.append(Arrivals(message.iteration, seconds, message.preceding, workers))
    except InvalidValueError as error:
        field = error.field.replace("arrivals", f"arrivals[{len(arrivals)}]", 1)
        raise InvalidValueError(field, error.value, error.rule) from None
    return [batch for batch in arrivals if batch.seconds.size]  # others say nothing, and would be kept


def _copied(workers: Any) -> Sequence[int]:  # noqa: ANN401 (a column of a message)
    if len(workers) < 64:  # so few are faster one by one, as in the core
        few: list[int] = workers[:]
        return few
    return array("I", np.array(workers, np.uint32).tobytes())


def membership_from(message: iteration_pb2.Membership) -> Membership:
    """The workers that are alive."""
    return Membership(message.live_workers, message.workers or None)


def summary_from(message: iteration_pb2.IterationSummary) -> IterationSummary:
    """An iteration that ended."""
    has = message.HasField  # rather than `_given`, because this is done for every decision
    rate = message.learning_rate if has("learning_rate") else None
    return IterationSummary(
        iteration=message.iteration,
        k=message.k,
        duration_seconds=message.duration_seconds,
        loss=message.loss if has("loss") else None,
        learning_rate=message.effective_learning_rate if has("effective_learning_rate") else rate,
        moments=_moments_from(message.moments) if has("moments") else None,
        previous_k=message.previous_k if has("previous_k") else None,
        end_cause=_member(END_CAUSE_OF, "summary.end_cause", message.end_cause),
        fallback=message.fallback,
        published_seconds=message.published_seconds if has("published_seconds") else None,
        lost_gradients=message.lost_gradients,
        decision_iteration=message.decision_iteration if has("decision_iteration") else None,
    )


def _moments_from(message: iteration_pb2.GradientMoments) -> GradientMoments:
    has = message.HasField
    within = message.within_worker if has("within_worker") else None
    return GradientMoments(
        mean_squared_norm=message.mean_squared_norm,
        sum_squared_norms=message.sum_squared_norms if has("sum_squared_norms") else None,
        variance=message.variance if has("variance") else None,
        within_worker_variance=None if within is None else within.variance,
        degrees_of_freedom=0 if within is None else within.degrees_of_freedom,
    )


def spec_from(message: job_pb2.JobSpec, default_policy: Policy) -> JobSpec:
    """How k is to be chosen."""
    estimation = message.estimation
    values = {
        "policy": _policy_from(message.policy) if message.HasField("policy") else default_policy,
        "k_min": _given(message, "k_min"),
        "k_max": _given(message, "k_max"),
        "averaging_window": _given(estimation, "averaging_window"),
        "sample_half_life": _given(estimation, "sample_half_life_iterations"),
        "unsampled_duration": _member(
            UNSAMPLED_OF, "spec.estimation.unsampled_duration", estimation.unsampled_duration
        ),
        "sync_mode": _member(SYNC_MODE_OF, "spec.sync_mode", message.sync_mode),
    }
    with _within(lambda field: f"spec.{SPEC_PATHS.get(field, field)}"):
        return JobSpec(**{name: value for name, value in values.items() if value is not None})


def _policy_from(message: job_pb2.Policy) -> Policy:
    rule = message.WhichOneof("rule")
    known = sorted(RULES.get(name, "custom") for name in POLICIES)
    if rule is None:
        raise InvalidValueError("spec.policy.rule", None, f"one of {', '.join(known)}")
    if rule == "custom":
        with _within(lambda field: f"spec.policy.custom.{'name' if field == 'policy' else 'parameters'}"):
            return create_policy(message.custom.name, message.custom.parameters)
    if POLICY_NAMES[rule] not in POLICIES:
        raise InvalidValueError("spec.policy.rule", rule, f"one of {', '.join(known)}")
    with _within(lambda field: f"spec.{field.replace('policy', f'policy.{rule}', 1)}"):
        parameters = {field.name: value for field, value in getattr(message, rule).ListFields()}
        return create_policy(POLICY_NAMES[rule], parameters)


def spec_message(spec: JobSpec) -> job_pb2.JobSpec:
    """How k is chosen, defaults filled in."""
    return job_pb2.JobSpec(
        policy=_policy_message(spec.policy),
        k_min=spec.k_min,
        k_max=spec.k_max,
        estimation=job_pb2.Estimation(
            averaging_window=spec.averaging_window,
            sample_half_life_iterations=spec.sample_half_life,
            unsampled_duration=UNSAMPLED[spec.unsampled_duration],
        ),
        sync_mode=SYNC_MODES[spec.sync_mode],
    )


def _policy_message(policy: Policy) -> job_pb2.Policy:
    name, parameters = policy_name(policy), policy_parameters(policy)
    message = job_pb2.Policy()
    if name not in RULES:
        message.custom.CopyFrom(job_pb2.CustomPolicy(name=name, parameters=parameters))
        return message
    rule = getattr(message, RULES[name])
    rule.SetInParent()
    for parameter, value in parameters.items():
        setattr(rule, parameter, value)
    return message


def decision_message(decision: Decision, include_estimates: bool) -> iteration_pb2.Decision:
    """How many gradients to wait for, and why."""
    message = iteration_pb2.Decision(
        iteration=decision.iteration,
        k=decision.k,
        deadline_seconds=decision.deadline_seconds,
        reason=REASONS[decision.reason],
        unbounded_k=decision.unbounded_k,
        live_workers=decision.live_workers,
    )
    if decision.missing_inputs:
        message.missing_inputs.extend(sorted(INPUTS[item] for item in decision.missing_inputs))
    if include_estimates:
        message.estimates.CopyFrom(_estimates_message(decision))
    return message


def _estimates_message(decision: Decision) -> iteration_pb2.Estimates:
    why = decision.estimates
    message = iteration_pb2.Estimates(
        squared_norm=why.gain.squared_norm,
        variance=why.gain.variance,
        smoothness=why.gain.smoothness,
        loss=why.loss,
        explanation=why.explanation,
    )
    if why.gains is not None:
        message.gains.extend(why.gains.tolist())
    if why.durations is not None:
        message.durations_seconds.extend(why.durations.seconds.tolist())
        message.shortest_seconds.extend(why.durations.shortest.tolist())
        message.longest_seconds.extend(why.durations.longest.tolist())
    return message


def membership_message(membership: Membership) -> iteration_pb2.Membership:
    """The workers that are alive."""
    return iteration_pb2.Membership(live_workers=membership.live_workers, workers=membership.workers or ())


def finding_message(finding: Finding) -> controller_pb2.Finding:
    """What looks wrong."""
    return controller_pb2.Finding(
        kind=FINDING_KINDS[finding.kind],
        message=finding.message,
        iterations=finding.iterations,
        last_iteration=finding.last_iteration,
    )
