"""Which versions of the parameters are in memory."""

from contextlib import ExitStack

from dbw_ps.publisher import MAX_KEPT, Publication, Publisher


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
        for _ in range(MAX_KEPT + 3):
            stack.enter_context(one.publisher.fetching(one.all[-1]))
            one.publish()
        assert one.in_memory == [*kept, MAX_KEPT + 3]
        one.now = 10.5
        one.publish()  # nobody fetches the one before
        assert one.in_memory == [*kept, MAX_KEPT + 4]
        stack.enter_context(one.publisher.fetching(one.all[-1]))
        one.publish()
        assert one.in_memory == [*kept[1:], MAX_KEPT + 4, MAX_KEPT + 5]
    assert one.in_memory == [MAX_KEPT + 5]
