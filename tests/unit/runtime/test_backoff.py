from itertools import islice
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from dbw_runtime.backoff import backoff


def test_waits_double_up_to_the_longest() -> None:
    assert list(islice(backoff(0.5, 3.0, lambda _, high: high), 5)) == [0.5, 1.0, 2.0, 3.0, 3.0]


@given(st.randoms(use_true_random=False))
def test_each_wait_is_shortened_at_random_by_at_most_half(random: Random) -> None:
    waits = zip(backoff(0.5, 3.0, random.uniform), backoff(0.5, 3.0, lambda _, high: high), strict=False)
    assert all(most / 2 <= wait <= most for wait, most in islice(waits, 10))


def test_two_clients_do_not_wait_in_step() -> None:
    assert list(islice(backoff(0.5, 3.0), 10)) != list(islice(backoff(0.5, 3.0), 10))
