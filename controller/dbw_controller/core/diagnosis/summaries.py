"""What a summary itself shows: its moments, what it lacks, and its k."""

from dbw_controller.core.diagnosis.ended import Ended
from dbw_controller.core.diagnosis.finding import FindingKind, Problem
from dbw_controller.core.estimators.gain import Skipped, gradient_variance
from dbw_controller.core.reasons import Input
from dbw_controller.core.reports import EndCause


def impossible_moments(ended: Ended) -> Problem | None:
    """Squared norms that no k gradients have. Those that are not finite are a diverged training's, and no mistake."""
    k, moments = ended.summary.k, ended.summary.moments
    if moments is None or gradient_variance(k, moments) is not Skipped.MOMENTS_IMPOSSIBLE:
        return None
    mean, squares = moments.mean_squared_norm, moments.sum_squared_norms
    if squares is None or min(mean, squares, moments.within_worker_variance or 0.0) < 0:
        message = f"The moments have a negative one: {moments}. Squared norms and variances never are."
        return FindingKind.MOMENTS_IMPOSSIBLE, message
    of_sum = (
        "‖ḡ‖² is of the gradients' sum: divide that by k before you take its norm. Or " if mean <= k * squares else ""
    )
    return FindingKind.MOMENTS_IMPOSSIBLE, (
        f"k was {k}, with ‖ḡ‖² = {mean:.6g} and Σ‖g‖² = {squares:.6g}. For any {k} gradients k·‖ḡ‖², here "
        f"{k * mean:.6g}, is at most Σ‖g‖². Probably {of_sum}one of the two is not squared, or Σ‖g‖² is a mean."
    )


def missing_input(ended: Ended) -> Problem | None:
    """What the policy would have used. Late arrivals are a kind of their own."""
    missing = ended.missing_inputs - {Input.LATE_ARRIVALS}
    if not missing:
        return None
    names = ", ".join(item.value for item in Input if item in missing)
    return FindingKind.INPUT_MISSING, f"The policy needs what was not reported: {names}. Report it in every iteration."


def other_k(ended: Ended) -> Problem | None:
    """More gradients than decided, or fewer though nothing hindered it."""
    summary, asked = ended.summary, ended.asked
    if asked is None or summary.fallback:
        return None
    possible = min(asked.k, ended.live_workers - summary.lost_gradients)
    fewer = summary.k < possible and ended.steady and summary.end_cause is EndCause.K_REACHED
    if not fewer and summary.k <= asked.k:
        return None
    return FindingKind.K_NOT_RESPECTED, (
        f"Iteration {summary.iteration} averaged {summary.k} gradients, and k = {asked.k} was decided. Wait for as "
        "many as decided, or say why not: `fallback` where k is your own, else `end_cause`."
    )
