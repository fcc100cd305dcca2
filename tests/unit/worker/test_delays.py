import math
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dbw_worker.delays import DISTRIBUTIONS, FACTORS, FORMS, LONGEST, Delay, parse_delay

DRAWN = 50_000
# Dvoretzky, Kiefer and Wolfowitz: an empirical distribution of n draws is anywhere further than ε from the true one
# with a probability of at most 2 exp(−2nε²), which is one in a million for this ε; a mean 4% off would be noticed.
FURTHEST = math.sqrt(math.log(2e6) / (2 * DRAWN))  # 0.012
STANDARD_ERRORS = 5  # a mean is further off in one of a million seeds; the seeds here are fixed


def random(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def draws(text: str, count: int = DRAWN, seed: int = 1) -> NDArray[np.float64]:
    delay, generator = parse_delay(text), random(seed)
    return np.array([delay.seconds(0, step, float(step), generator) for step in range(count)])


def seconds(text: str, worker: int = 0, step: int = 0, now: float = 0.0) -> float:
    return parse_delay(text).seconds(worker, step, now, random())


def trace(folder: Path, *rows: str, header: str = "step,worker,seconds") -> Path:
    file = folder / "trace.csv"
    file.write_text("\n".join([header, *rows]) + "\n")
    return file


Quantile = Callable[[NDArray[np.float64]], NDArray[np.float64]]
THEORY: list[tuple[str, float, float, Quantile]] = [  # mean, variance, and the inverse of the distribution function
    ("uniform:0.1,0.9", 0.5, 0.8**2 / 12, lambda p: 0.1 + 0.8 * p),
    ("exp:0.7", 0.7, 0.49, lambda p: -0.7 * np.log1p(-p)),
    ("shifted-exp:0.3,0.7", 1.0, 0.49, lambda p: 0.3 - 0.7 * np.log1p(-p)),
    ("pareto:2.5,0.1", 2.5 * 0.1 / 1.5, 0.1**2 * 2.5 / (1.5**2 * 0.5), lambda p: 0.1 * (1 - p) ** (-1 / 2.5)),
    ("exp:1 * factors:3 * slowdown:0.5", 1.5, 2.25, lambda p: -1.5 * np.log1p(-p)),
]


@pytest.mark.parametrize(("text", "quantile"), [(text, quantile) for text, _, _, quantile in THEORY])
def test_a_distribution_has_its_theorys_quantiles(text: str, quantile: Quantile) -> None:
    levels = np.array([0.001, *np.linspace(0.01, 0.99, 99), 0.999])
    below = np.searchsorted(np.sort(draws(text)), quantile(levels)) / DRAWN
    assert np.abs(below - levels).max() < FURTHEST


@pytest.mark.parametrize(("text", "mean", "variance"), [(text, mean, variance) for text, mean, variance, _ in THEORY])
def test_a_distribution_has_its_theorys_mean(text: str, mean: float, variance: float) -> None:
    assert abs(draws(text).mean() - mean) < STANDARD_ERRORS * math.sqrt(variance / DRAWN)


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [("uniform:0.1,0.9", 0.1, 0.9), ("shifted-exp:0.3,0.7", 0.3, math.inf), ("pareto:2.5,0.1", 0.1, math.inf)],
)
def test_a_distribution_stays_within_its_bounds_and_comes_near_them(text: str, low: float, high: float) -> None:
    values = draws(text)
    assert low <= values.min() < low + 1e-3
    assert values.max() <= high
    assert math.isinf(high) or values.max() > high - 1e-3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", 0.0),
        ("constant:0.5", 0.5),
        ("constant:0", 0.0),
        ("uniform:0.4,0.4", 0.4),
        ("exp:0", 0.0),
        ("shifted-exp:1,0", 1.0),
        ("none * factors:1000", 0.0),
    ],
)
def test_what_has_no_chance_in_it_is_always_the_same(text: str, expected: float) -> None:
    assert set(draws(text, 100)) == {expected}


@pytest.mark.parametrize("text", [text for text, *_ in THEORY])
def test_the_seed_decides_the_draws(text: str) -> None:
    assert np.array_equal(draws(text, 100), draws(text, 100))
    assert not np.array_equal(draws(text, 100), draws(text, 100, seed=2))


def test_draws_of_a_distribution_are_independent() -> None:
    values = draws("exp:1")
    # The sample correlation of independent values has the standard error 1/√n.
    assert abs(np.corrcoef(values[1:], values[:-1])[0, 1]) < STANDARD_ERRORS / math.sqrt(DRAWN)


@pytest.mark.parametrize(
    "text",
    [
        "pareto:1e-300,0.1",
        "pareto:5e-324,5e-324",
        "pareto:0.01,1e9 * factors:0",
        "exp:1e9 * slowdown:1e9" + " * factors:1e9" * 40 + " * factors:0,1",
        "shifted-exp:1e9,1e9",
    ],
)
def test_a_delay_is_never_longer_than_a_timer_takes(text: str) -> None:
    delay, generator = parse_delay(text), random()
    for step in range(100):
        for worker in range(2):
            assert 0 <= delay.seconds(worker, step, 0.0, generator) <= LONGEST


ROWS = ["16,0,1.0", "16,1,10", "19,0,2.0", "19,1,20", "43,0,3.0", "43,1,30"]


def test_a_trace_is_replayed_in_order_of_its_steps_over_and_over(tmp_path: Path) -> None:
    delay = parse_delay(f"trace:{trace(tmp_path, *reversed(ROWS))}")
    assert [delay.seconds(0, step, 0.0, random()) for step in range(7)] == [1, 2, 3, 1, 2, 3, 1]
    assert [delay.seconds(1, step, 0.0, random()) for step in (1, 3_000_001)] == [20, 20]


def test_workers_beyond_a_trace_replay_its_columns_again(tmp_path: Path) -> None:
    delay = parse_delay(f"trace:{trace(tmp_path, *ROWS)}")
    assert [delay.seconds(worker, 1, 0.0, random()) for worker in range(5)] == [2, 20, 2, 20, 2]


def test_columns_of_a_trace_may_have_gaps_in_their_numbers_and_lengths_of_their_own(tmp_path: Path) -> None:
    delay = parse_delay(f"trace:{trace(tmp_path, '0,10,4', '0,2,1', '1,2,2')}")
    assert [delay.seconds(0, step, 0.0, random()) for step in range(3)] == [1, 2, 1]
    assert [delay.seconds(1, step, 0.0, random()) for step in range(3)] == [4, 4, 4]


def test_a_trace_has_a_scale_and_factors(tmp_path: Path) -> None:
    file = trace(tmp_path, *ROWS)
    assert seconds(f"trace:{file},scale=0.05", step=2) == pytest.approx(0.15)
    assert seconds(f"trace:{file}, scale = 2 * factors:1,10", worker=1) == 200


def test_a_trace_takes_nothing_from_the_random_numbers(tmp_path: Path) -> None:
    generator = random()
    parse_delay(f"trace:{trace(tmp_path, *ROWS)}").seconds(0, 0, 0.0, generator)
    assert generator.random() == random().random()


def test_a_trace_is_read_once(tmp_path: Path) -> None:
    file = trace(tmp_path, *ROWS)
    delay = parse_delay(f"trace:{file}")
    file.unlink()
    assert delay.seconds(0, 2, 0.0, random()) == 3


def test_a_trace_may_come_from_a_spreadsheet(tmp_path: Path) -> None:
    file = tmp_path / "seed=3: MiXeD.csv"
    file.write_bytes('\ufeff"step","worker","seconds"\r\n"0","0","1.5"\r\n\r\n\r\n'.encode())
    assert seconds(f"trace:{file}") == 1.5


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "a CSV file with the header step,worker,seconds and at least one row"),
        ("step,worker,seconds\n", "and at least one row"),
        ("worker,step,seconds\n0,0,1\n", "the header step,worker,seconds"),
        ("0,0,1\n", "the header step,worker,seconds"),
        ("step,worker,seconds\n0,0,1\n1,0,fast\n", "such as 16,0,5.6, .*; line 3 is '1,0,fast'"),
        ("step,worker,seconds\n0,0\n", "line 2 is '0,0'"),
        ("step,worker,seconds\n0,0,1,2\n", "line 2 is '0,0,1,2'"),
        ("step,worker,seconds\n\n0,0,1\n", "line 2 is ''"),
        ("step,worker,seconds\n0.5,0,1\n", "line 2 is '0.5,0,1'"),
        ("step,worker,seconds\n-1,0,1\n", "line 2 is '-1,0,1'"),
        ("step,worker,seconds\n0,-1,1\n", "line 2 is '0,-1,1'"),
        ("step,worker,seconds\n0,0,-1\n", "line 2 is '0,0,-1'"),
        ("step,worker,seconds\n0,0,nan\n", "line 2 is '0,0,nan'"),
        ("step,worker,seconds\n0,0,inf\n", "line 2 is '0,0,inf'"),
        ("step,worker,seconds\n0,0,1\n0,1,1\n0,0,1\n", "no two for the same step and worker; line 4 is '0,0,1'"),
        (b"\xff\xfe\x00", "a CSV file that can be read: .*can't decode"),
        pytest.param("step,worker,seconds\n" + "1" * 200_000, "that can be read: field larger than", id="no end"),
    ],
)
def test_a_wrong_trace_is_explained(tmp_path: Path, content: str | bytes, reason: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=f"^the delay 'trace:{file}' needs .*{reason}"):
        parse_delay(f"trace:{file}")


def test_a_trace_that_is_not_there_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"needs a CSV file that can be read: .*No such file or directory"):
        parse_delay(f"trace:{tmp_path / 'none.csv'}")
    with pytest.raises(ValueError, match=r"needs a CSV file that can be read: .*Is a directory"):
        parse_delay(f"trace:{tmp_path}")
    with pytest.raises(ValueError, match="needs a CSV file that can be read: embedded null byte"):
        parse_delay("trace:\0.csv")


@pytest.mark.parametrize(("now", "expected"), [(0, 1), (159.9, 1), (160, 5), (299.9, 5), (300, 1), (1e9, 1)])
def test_a_slowdown_includes_its_beginning_and_excludes_its_end(now: float, expected: float) -> None:
    assert seconds("constant:1 * slowdown:5,from=160,until=300", now=now) == expected


@pytest.mark.parametrize("now", [0.0, 1e12])
@pytest.mark.parametrize("worker", [0, 1000])
def test_a_slowdown_is_for_all_and_for_ever_by_default(now: float, worker: int) -> None:
    assert seconds("constant:1 * slowdown:5", worker, now=now) == 5


@pytest.mark.parametrize(
    ("workers", "slow"),
    [
        ("0-3+7", {0, 1, 2, 3, 7}),
        ("7+0-3", {0, 1, 2, 3, 7}),
        ("2", {2}),
        ("2-2", {2}),
        ("0", {0}),
        ("1-4+3-5+4", {1, 2, 3, 4, 5}),
        (" 1 + 3-4", {1, 3, 4}),
        ("8-999999999", {8, 9}),
    ],
)
def test_a_slowdown_is_for_the_workers_in_its_list(workers: str, slow: set[int]) -> None:
    text = f"constant:1 * slowdown:5,workers={workers}"
    assert {worker for worker in range(10) if seconds(text, worker) == 5} == slow
    assert {seconds(text, worker) for worker in range(10)} == {1, 5}


def test_factors_belong_to_workers_and_repeat() -> None:
    values = [seconds("constant:0.5 * factors:1,1,2,4", worker, step=worker, now=worker) for worker in range(9)]
    assert values == [0.5, 0.5, 1, 2, 0.5, 0.5, 1, 2, 0.5]


def test_a_factor_of_zero_takes_the_delay_from_a_worker() -> None:
    assert [seconds("constant:5 * factors:0,1", worker) for worker in range(3)] == [0, 5, 0]


def test_factors_multiply() -> None:
    text = "constant:0.5*factors:1,2 *slowdown:5,from=10* slowdown:0.1,workers=1  *  slowdown:3,until=10"
    assert seconds(text, worker=0, now=0) == pytest.approx(0.5 * 3)
    assert seconds(text, worker=0, now=10) == pytest.approx(0.5 * 5)
    assert seconds(text, worker=1, now=10) == pytest.approx(0.5 * 2 * 5 * 0.1)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (" Shifted-EXP : 0.3 , 0.7 ", "shifted-exp:0.3,0.7"),
        ("exp:1.0*slowdown:5", "exp:1 * slowdown:5,from=0"),
        ("exp:1 * slowdown:5,workers=0-3,from=1", "exp:1 * slowdown:5e0,from=1,workers=0-3"),
        ("none:", "none"),
    ],
)
def test_spaces_and_ways_to_write_a_number_do_not_matter(text: str, same: str) -> None:
    assert parse_delay(text) == parse_delay(same)
    assert hash(parse_delay(text)) == hash(parse_delay(same))


@pytest.mark.parametrize("text", ["exp:1", "exp:0.7 * factors:1", "shifted-exp:0,0.7", "exp:0.7 * slowdown:1,until=3"])
def test_other_delays_are_not_equal(text: str) -> None:
    assert parse_delay(text) != parse_delay("exp:0.7")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the delay '' needs to begin with one of none, constant, uniform, exp, shifted-exp, pareto, trace"),
        ("0.5", "the delay '0.5' needs to begin with one of none, constant, .*trace"),
        ("normal:1,2", "the delay 'normal:1,2' needs to begin with one of none, constant, .*trace"),
        ("slowdown:5", "the delay 'slowdown:5' needs to begin with one of none, constant, .*trace"),
        ("none:1", "the delay 'none:1' needs nothing after it, such as none"),
        ("constant", "the delay 'constant' needs 1 number, SECONDS, such as constant:0.5"),
        ("constant:1,2", "the delay 'constant:1,2' needs 1 number, SECONDS, such as constant:0.5"),
        ("uniform:1", "the delay 'uniform:1' needs 2 numbers, LOW,HIGH, such as uniform:0.1,0.9"),
        ("uniform:0.9,0.1", "the delay 'uniform:0.9,0.1' needs a HIGH that is not below LOW"),
        ("exp:", "the delay 'exp:' needs 1 number, MEAN, such as exp:0.7"),
        ("exp:x", "the delay 'exp:x' needs a number from 0 to 1e+09 instead of 'x'"),
        ("exp:-1", "the delay 'exp:-1' needs a number from 0 to 1e+09 instead of '-1'"),
        ("exp:nan", "the delay 'exp:nan' needs a number from 0 to 1e+09 instead of 'nan'"),
        ("exp:inf", "the delay 'exp:inf' needs a number from 0 to 1e+09 instead of 'inf'"),
        ("exp:2e9", "the delay 'exp:2e9' needs a number from 0 to 1e+09 instead of '2e9'"),
        ("exp:mean=1", "the delay 'exp:mean=1' needs a number from 0 to 1e+09 instead of 'mean=1'"),
        ("shifted-exp:0.3", "the delay 'shifted-exp:0.3' needs 2 numbers, SHIFT,MEAN, such as shifted-exp:0.3,0.7"),
        ("shifted-exp:0.3,", "the delay 'shifted-exp:0.3,' needs a number from 0 to 1e+09 instead of ''"),
        ("shifted-exp:1,2,3", "the delay 'shifted-exp:1,2,3' needs 2 numbers, SHIFT,MEAN, such as shifted-exp:0.3,0.7"),
        ("pareto:2.5", "the delay 'pareto:2.5' needs 2 numbers, SHAPE,LEAST, such as pareto:2.5,0.1"),
        ("pareto:0,0.1", "the delay 'pareto:0,0.1' needs SHAPE and LEAST above 0"),
        ("pareto:2.5,0", "the delay 'pareto:2.5,0' needs SHAPE and LEAST above 0"),
        ("trace:", "the delay 'trace:' needs a file, such as trace:FILE.csv,scale=0.05"),
        ("trace:a,speed=1", "the delay 'trace:a,speed=1' needs one of scale, each once, instead of 'speed=1', .*"),
        ("trace:a,scale=-1", "the delay 'trace:a,scale=-1' needs a number from 0 to 1e+09 instead of '-1'"),
        ("trace:a,b.csv", "the delay 'trace:a,b.csv' needs one of scale, each once, instead of 'b.csv', .*"),
        ("exp:1 *", "the factor '' needs to begin with one of slowdown, factors"),
        ("exp:1 * 2", "the factor '2' needs to begin with one of slowdown, factors"),
        ("exp:1 * exp:2", "the factor 'exp:2' needs to begin with one of slowdown, factors"),
        ("exp:1 * factors", "the factor 'factors' needs 1 number or more, such as factors:1,1,2,4"),
        ("exp:1 * factors:1,,2", "the factor 'factors:1,,2' needs a number from 0 to 1e+09 instead of ''"),
        ("exp:1 * factors:-1", "the factor 'factors:-1' needs a number from 0 to 1e+09 instead of '-1'"),
        ("exp:1 * slowdown:", "the factor 'slowdown:' needs 1 number, FACTOR, such as slowdown:5,from=160,.*"),
        ("exp:1 * slowdown:from=1", "the factor 'slowdown:from=1' needs a number from 0 to 1e+09 instead of 'from=1'"),
        ("exp:1 * slowdown:5,6", ".* needs one of from, until, workers, each once, instead of '6', such as slowdown.*"),
        ("exp:1 * slowdown:5,form=6", ".* one of from, until, workers, each once, instead of 'form=6', such as .*"),
        ("exp:1 * slowdown:5,from=6,from=7", ".* one of from, until, workers, each once, instead of 'from=7', .*"),
        ("exp:1 * slowdown:5,from", ".* one of from, until, workers, each once, instead of 'from', such as .*"),
        ("exp:1 * slowdown:5,from=-1", ".* needs a number from 0 to 1e+09 instead of '-1'"),
        ("exp:1 * slowdown:5,until=inf", ".* needs a number from 0 to 1e+09 instead of 'inf'"),
        ("exp:1 * slowdown:5,from=6,until=6", ".* needs an until that is after its from"),
        ("exp:1 * slowdown:5,until=0", ".* needs an until that is after its from"),
        ("exp:1 * slowdown:5,workers=0-3,7", ".* one of from, until, workers, each once, instead of '7', such as .*"),
        *(
            (f"exp:1 * slowdown:5,workers={workers}", ".* needs workers such as 0-3+7 instead of '.*'")
            for workers in ("", "+", "1+", "3-1", "1-", "-1", "a", "1-2-3", "0/3", "1.5", "1234567890")
        ),
    ],
)
def test_a_wrong_delay_is_explained(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason.replace('+', '[+]')}$"):
        parse_delay(text)


@pytest.mark.parametrize("name", [*DISTRIBUTIONS, *FACTORS])
def test_every_form_has_an_example_that_works(name: str, tmp_path: Path) -> None:
    example = {**DISTRIBUTIONS, **FACTORS}[name].example
    assert example in FORMS
    text = example.replace("FILE.csv", str(trace(tmp_path, *ROWS)))
    delay = parse_delay(text if name in DISTRIBUTIONS else f"constant:1 * {text}")
    assert math.isfinite(delay.seconds(3, 2, 200.0, random()))


def test_every_distribution_but_a_trace_can_be_drawn() -> None:
    assert [name for name, form in DISTRIBUTIONS.items() if form.draw is None] == ["trace"]


NUMBERS = st.floats(0, LONGEST).map(repr)
POSITIVE = st.floats(0, LONGEST, exclude_min=True).map(repr)
SOURCES = st.one_of(
    st.just("none"),
    st.builds("constant:{}".format, NUMBERS),
    st.tuples(st.floats(0, LONGEST), st.floats(0, LONGEST)).map(lambda pair: "uniform:{},{}".format(*sorted(pair))),
    st.builds("exp:{}".format, NUMBERS),
    st.builds("shifted-exp:{},{}".format, NUMBERS, NUMBERS),
    st.builds("pareto:{},{}".format, POSITIVE, POSITIVE),
)
WORKERS = st.lists(
    st.integers(0, 20) | st.builds(lambda first, more: f"{first}-{first + more}", st.integers(0, 9), st.integers(0, 9)),
    min_size=1,
).map(lambda parts: "+".join(map(str, parts)))
KEYS: st.SearchStrategy[dict[str, str]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries({}, optional={"from": NUMBERS, "workers": WORKERS}),
    st.fixed_dictionaries({}, optional={"until": POSITIVE, "workers": WORKERS}),
)
SLOWDOWNS = st.builds(
    lambda factor, keys: ",".join([f"slowdown:{factor}", *(f"{key}={value}" for key, value in keys.items())]),
    NUMBERS,
    KEYS,
)
FACTOR_LISTS = st.lists(NUMBERS, min_size=1, max_size=5).map(lambda numbers: "factors:" + ",".join(numbers))
TEXTS = st.builds(
    lambda source, factors, star: star.join([source, *factors]),
    SOURCES,
    st.lists(SLOWDOWNS | FACTOR_LISTS, max_size=4),
    st.sampled_from(["*", " * ", "* "]),
)


@given(st.floats(0, LONGEST), st.integers(0, 1000))
def test_every_number_can_be_written_in_a_delay(number: float, worker: int) -> None:
    assert seconds(f"constant:{number!r}", worker) == number
    assert seconds(f"constant:1 * slowdown:{number!r},workers={worker}", worker) == number


@given(TEXTS)
def test_the_text_of_a_delay_is_the_delay(text: str) -> None:
    delay = parse_delay(text)
    again = parse_delay(str(delay))
    assert (again, str(again)) == (delay, text)


@given(TEXTS, st.integers(0, 2000), st.integers(0, 10**9), st.floats(0, 1e12), st.integers(0, 2**32))
def test_a_delay_is_always_a_number_of_seconds(text: str, worker: int, step: int, now: float, seed: int) -> None:
    value = parse_delay(text).seconds(worker, step, now, random(seed))
    assert type(value) is float
    assert 0 <= value <= LONGEST


@given(st.text() | st.text(alphabet="exptracslowdn:,*=+-0123456789. "))
def test_any_text_is_a_delay_or_refused(text: str) -> None:
    try:
        assert isinstance(parse_delay(text), Delay)
    except ValueError as error:
        assert str(error).startswith(("the delay '", 'the delay "', "the factor '", 'the factor "'))  # noqa: PT017


def test_a_delay_can_be_sent_to_another_process(tmp_path: Path) -> None:
    for source in ("pareto:2.5,0.1", f"trace:{trace(tmp_path, *ROWS)}"):
        delay = parse_delay(f"{source} * slowdown:5,workers=0-3 * factors:1,2")
        assert pickle.loads(pickle.dumps(delay)) == delay  # noqa: S301
