"""Which versions of the parameters are in memory."""

from contextlib import ExitStack

import pytest

from dbw_ps.publisher import MAX_KEPT, OBSERVERS, Publication, Publisher


class Published:
    """A publisher and all that it has published, at times that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.publisher = Publisher(patience=10.0, clock=lambda: self.now)
        self.all: list[Publication] = []
        self.publish()

    def publish(self) -> None:
        """Publish the next version."""
        self.all.append(Publication(len(self.all), False, [b"a", b"b"]))
        self.publisher.publish(self.all[-1])

    @property
    def in_memory(self) -> list[int]:
        """The versions that are in memory."""
        return [one.version for one in self.all if one.pieces]


def test_a_version_that_nobody_fetches_is_gone_when_there_is_a_newer_one() -> None:
    one = Published()
    with one.publisher.fetching(one.all[0]):
        pass
    one.publish()
    assert one.in_memory == [1]


def test_a_version_stays_until_the_last_who_fetches_it_has_it() -> None:
    one = Published()
    with one.publisher.fetching(one.all[0]):
        with one.publisher.fetching(one.all[0]):
            one.publish()
        assert one.in_memory == [0, 1]
    assert one.in_memory == [1]


def test_few_versions_are_kept_and_the_oldest_makes_room_when_it_has_had_its_time() -> None:
    one, kept = Published(), list(range(MAX_KEPT))
    with ExitStack() as stack:
        for worker in range(MAX_KEPT + 3):
            stack.enter_context(one.publisher.fetching(one.all[-1], worker))
            one.publish()
        assert one.in_memory == [*kept, MAX_KEPT + 3]
        one.now = 10.5
        one.publish()  # nobody fetches the one before
        assert one.in_memory == [*kept, MAX_KEPT + 4]
        stack.enter_context(one.publisher.fetching(one.all[-1], 99))
        one.publish()
        assert one.in_memory == [*kept[1:], MAX_KEPT + 4, MAX_KEPT + 5]
    assert one.in_memory == [MAX_KEPT + 5]


@pytest.mark.parametrize("hostile", [OBSERVERS, 7])
def test_observers_together_and_each_worker_keep_one_version_and_leave_places_to_others(hostile: int) -> None:
    one = Published()
    with ExitStack() as stack:
        for _ in range(2 * MAX_KEPT):
            stack.enter_context(one.publisher.fetching(one.all[-1], hostile))
            one.publish()
        assert one.in_memory == [0, 2 * MAX_KEPT]
        with one.publisher.fetching(one.all[-1], 1):
            one.publish()
            with one.publisher.fetching(one.all[-1], 2):
                one.publish()
                assert one.in_memory == [0, 2 * MAX_KEPT, 2 * MAX_KEPT + 1, 2 * MAX_KEPT + 2]
        assert one.in_memory == [0, 2 * MAX_KEPT + 2]


def test_who_has_a_place_already_does_not_take_over_that_of_another_who_is_done() -> None:
    one = Published()
    with ExitStack() as stack:
        stack.enter_context(one.publisher.fetching(one.all[0], OBSERVERS))
        one.publish()
        stack.enter_context(one.publisher.fetching(one.all[1], OBSERVERS))
        with one.publisher.fetching(one.all[1], 1):
            one.publish()
            assert one.in_memory == [0, 1, 2]
        assert one.in_memory == [0, 2]


def test_a_version_stays_for_others_who_fetch_it_when_one_is_done() -> None:
    one = Published()
    with one.publisher.fetching(one.all[0], OBSERVERS):
        with one.publisher.fetching(one.all[0], 1):
            one.publish()
        assert one.in_memory == [0, 1]
    assert one.in_memory == [1]


def test_observers_get_their_place_back_when_the_one_before_has_had_its_time() -> None:
    one = Published()
    with one.publisher.fetching(one.all[0], OBSERVERS):
        one.publish()
        one.now = 10.5
        with one.publisher.fetching(one.all[1], OBSERVERS):
            one.publish()
            assert one.in_memory == [1, 2]
    assert one.in_memory == [2]
