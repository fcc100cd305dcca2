"""Why k was chosen, and what a parameter server may report: the words of the contract. Nothing is imported for them."""

from enum import Enum


class Reason(Enum):
    """The rule that chose k; the names are those of the contract."""

    FIRST_ITERATION = "nothing has been observed yet"
    NOT_ENOUGH_DATA = "too little has been observed yet"
    BEST_RATE = "largest estimated gain per second"
    NO_POSITIVE_GAIN = "no k has a positive gain"
    LOSS_INCREASED = "the loss has grown"
    FIXED = "k is fixed"
    ALL_WORKERS = "all workers are waited for"
    LOSS_RATIO = "the loss relative to the first one"
    PROBE = "to learn what only this k can tell"
    CUSTOM = "a custom policy's own"


class Input(Enum):
    """What a policy may use of what a parameter server may report; the names are those of the contract."""

    WORKER_NUMBERS = "arrivals with worker numbers"
    LATE_ARRIVALS = "arrivals after the end of their iteration"
    LOSS = "the loss"
    LEARNING_RATE = "the learning rate"
    MOMENTS = "the gradients' moments"
    WITHIN_WORKER_VARIANCE = "the variance within workers"
