"""What a parameter server can see of its job, however it talks to the controller."""

from collections.abc import Sequence

from dbw.v1.iteration_pb2 import Decision
from dbw_controller.client.conversation import Conversation


class Training:
    """A job, as far as it needs no connection."""

    def __init__(self, talk: Conversation) -> None:
        self._talk = talk

    @property
    def name(self) -> str:
        """The job's name."""
        return self._talk.name

    @property
    def iteration(self) -> int:
        """The current iteration."""
        return self._talk.iteration

    @property
    def k(self) -> int:
        """How many gradients to wait for in this iteration."""
        return self._talk.k

    @property
    def decision(self) -> Decision | None:
        """The controller's decision for this iteration, with its reason; None on fallback."""
        return self._talk.decision

    @property
    def on_fallback(self) -> bool:
        """Whether k is not the controller's decision."""
        return self._talk.on_fallback

    @property
    def problem(self) -> str | None:
        """What is wrong with the connection to the controller, if anything is."""
        return self._talk.problem

    def arrived(self, seconds: float, worker: int | None = None, iteration: int | None = None) -> None:
        """A gradient arrived, so many seconds after its parameters were published.

        One of an earlier iteration is late, and welcome all the same. Arrivals are sent when the iteration ends.
        """
        self._talk.arrived(seconds, worker, iteration)

    def set_workers(self, workers: int | Sequence[int]) -> None:
        """Workers came or went: how many are alive now, or their numbers."""
        self._talk.set_workers(workers)
