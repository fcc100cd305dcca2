import numpy as np

from dbw_controller.core.reasons import Reason
from dbw_controller.core.reports import Arrivals
from dbw_controller.server.counters import Histogram, Statistics
from tests.jobs import new_job, summary, trained_job


def test_a_histogram_counts_what_is_up_to_each_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    assert histogram.buckets() == [("1.0", 2), ("2.0", 3), ("+Inf", 4)]
    assert histogram.sum == 12.0


def test_predicted_and_observed_seconds_are_of_the_same_iterations() -> None:
    statistics, decided = Statistics(), trained_job().decision()
    durations = decided.estimates.durations
    assert durations is not None
    statistics.ended(summary(0, k=2, duration_seconds=5.0), None)  # nothing was decided for it
    statistics.ended(summary(6, k=2, duration_seconds=7.0), decided)
    assert statistics.observed_seconds == 7.0
    assert statistics.predicted_seconds == durations.seconds[1]
    assert (statistics.iterations, statistics.used_gradients, statistics.iteration_seconds.sum) == (2, 4, 12.0)


def test_an_iteration_whose_k_no_estimate_chose_is_a_fallback() -> None:
    statistics = Statistics()
    statistics.ended(summary(0, fallback=True, lost_gradients=1), None)
    decision = new_job().decision()
    statistics.decided(decision, 0.001)
    assert statistics.fallbacks["parameter_server"] == 1
    assert statistics.lost_gradients == 1
    assert statistics.decisions == {Reason.FIRST_ITERATION: 1}


def test_arrivals_are_counted_by_worker_where_workers_are_numbered() -> None:
    statistics = Statistics()
    statistics.arrived(Arrivals(0, np.array([1.0, 3.0]), workers=[7, 8]), 2)
    statistics.arrived(Arrivals(1, np.array([2.0]), workers=[7]), 2)
    statistics.arrived(Arrivals(2, np.array([9.0])), 2)
    assert statistics.worker_arrivals == {7: 2, 8: 1}
    assert statistics.worker_seconds == {7: 3.0, 8: 3.0}


def test_only_the_workers_that_were_heard_of_last_have_series() -> None:
    statistics, workers = Statistics(), 4
    for iteration in range(1000):
        statistics.arrived(Arrivals(iteration, np.ones(1), workers=[iteration]), workers)
        statistics.arrived(Arrivals(iteration, np.ones(1), workers=[0]), workers)
    assert list(statistics.worker_arrivals) == [993, 994, 995, 996, 997, 998, 999, 0]
    assert statistics.worker_seconds.keys() == statistics.worker_arrivals.keys()
    assert statistics.worker_arrivals[0] == 1001
