import pytest

from dbw_controller.core.errors import StateDamagedError
from dbw_controller.core.job import Job
from dbw_controller.wire.state import export_state, import_state
from tests.jobs import full_report, new_job


def job_after(iterations: int) -> Job:
    job = new_job()
    for iteration in range(iterations):
        job.report(full_report(iteration))
    return job


@pytest.mark.parametrize("claimed", [1, 3, 5, 9])
@pytest.mark.parametrize(("learnt", "is_newer"), [(2, False), (5, False), (6, True)])
def test_which_state_is_newer_is_read_from_the_states_whatever_the_header_says(
    learnt: int, is_newer: bool, claimed: int
) -> None:
    job, (header, data) = job_after(5), export_state("resnet", job_after(learnt))
    header.learnt_iterations = claimed
    before = job.decision()
    decision = import_state(job, header, data, only_if_newer=True)
    assert job.learnt_iterations == max(learnt, 5)
    assert (decision is before) == (not is_newer)
    assert decision is job.decision()


def test_a_damaged_state_is_refused_though_it_says_that_it_is_older() -> None:
    job, (header, data) = job_after(5), export_state("resnet", job_after(2))
    with pytest.raises(StateDamagedError):
        import_state(job, header, data[:-1], only_if_newer=True)
