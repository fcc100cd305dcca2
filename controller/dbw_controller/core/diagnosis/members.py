"""Whether gradients come from the workers that are alive."""

from dbw_controller.core.diagnosis.ended import Ended
from dbw_controller.core.diagnosis.finding import FindingKind, Problem


def strangers(ended: Ended) -> Problem | None:
    """Arrivals of workers that were never alive since the iteration began."""
    unknown = ended.workers.difference(*(membership.workers or () for membership in ended.memberships))
    if not unknown or any(membership.workers is None for membership in ended.memberships):
        return None
    return FindingKind.MEMBERSHIP_OUT_OF_DATE, (
        f"In iteration {ended.summary.iteration} gradients came from {len(unknown)} workers that are not among the "
        f"{ended.live_workers} live ones: {min(unknown)}, for example. Report the membership whenever workers come or "
        "go, with the numbers that their arrivals have."
    )


def too_many(ended: Ended) -> Problem | None:
    """More gradients than workers, in an iteration in which nobody came or went."""
    most = max(ended.seconds.size, ended.summary.k)
    if not ended.steady or most <= ended.live_workers:
        return None
    return FindingKind.MEMBERSHIP_OUT_OF_DATE, (
        f"Iteration {ended.summary.iteration} had {most} gradients of {ended.live_workers} live workers. Report the "
        "membership whenever workers come or go, and arrivals under their own iteration."
    )
