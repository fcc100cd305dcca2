import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbw_runtime.parameters import Parameter, numbers_by_key, split_parameters


@pytest.mark.parametrize(
    ("text", "name", "parameters"),
    [
        ("dbw", "dbw", []),
        ("dbw:", "dbw", []),
        ("static:8", "static", [(None, "8")]),
        ("adasync:initial_k=2", "adasync", [("initial_k", "2")]),
        ("sgd:lr=0.1,momentum=0.9", "sgd", [("lr", "0.1"), ("momentum", "0.9")]),
        ("slowdown:5,from=160,workers=0-3+7", "slowdown", [(None, "5"), ("from", "160"), ("workers", "0-3+7")]),
        (" SGD : LR = 1 , nesterov ", "SGD", [("LR", "1"), (None, "nesterov")]),
        ("trace:run:1/a.csv,x=y=z", "trace", [(None, "run:1/a.csv"), ("x", "y=z")]),
        ("factors:1,,2,=3,k=", "factors", [(None, "1"), (None, ""), (None, "2"), ("", "3"), ("k", "")]),
        ("", "", []),
        (":8", "", [(None, "8")]),
    ],
)
def test_a_text_is_a_name_and_parameters(text: str, name: str, parameters: list[tuple[str | None, str]]) -> None:
    assert split_parameters(text) == (name, parameters)


@pytest.mark.parametrize(
    ("text", "name", "parameters"),
    [
        ("mypkg.rules:Patient", "mypkg.rules:Patient", []),
        ("rules:Patient:alpha=0.3,beta=1", "rules:Patient", [("alpha", "0.3"), ("beta", "1")]),
        ("path/to/rules.py:Patient:3", "path/to/rules.py:Patient", [(None, "3")]),
        ("C:/old rules/a,b=c.py:Patient", "C:/old rules/a,b=c.py:Patient", []),
        (" rules.py : Patient : alpha = 0.3 ", "rules.py:Patient", [("alpha", "0.3")]),
        ("rules.py:Patient:", "rules.py:Patient", []),
        ("dbw", "dbw", []),
        ("static:8", "static", [(None, "8")]),
        ("static:k=3", "static", [("k", "3")]),
        ("static:1e5", "static", [(None, "1e5")]),
    ],
)
def test_a_plug_in_is_told_from_a_name_with_parameters(
    text: str, name: str, parameters: list[tuple[str | None, str]]
) -> None:
    assert split_parameters(text, plugins=True) == (name, parameters)


WORDS = st.text(st.characters(exclude_characters=":,="), min_size=1).map(str.strip).filter(bool)
VALUES = st.text(st.characters(exclude_characters=",=")).map(str.strip)
PARAMETERS = st.builds(Parameter, st.none() | WORDS, VALUES)


@given(WORDS, st.lists(PARAMETERS))
def test_what_is_written_from_its_parts_is_split_into_them(name: str, parameters: list[Parameter]) -> None:
    text = f"{name}:{','.join(map(str, parameters))}"
    lone_empty_value = parameters == [(None, "")]  # which nothing is written for
    assert split_parameters(text) == (name, [] if lone_empty_value else parameters)


IDENTIFIERS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.from_regex(r"[a-z]+(\.[a-z]+)*|([a-z.]+/)*[a-z]+\.py", fullmatch=True),
    IDENTIFIERS,
    st.dictionaries(WORDS, NUMBERS),
)
def test_plug_ins_with_numbers_come_back(place: str, kind: str, numbers: dict[str, float]) -> None:
    text = f"{place}:{kind}:{','.join(f'{key}={value!r}' for key, value in numbers.items())}"
    name, parameters = split_parameters(text, plugins=True)
    assert name == f"{place}:{kind}"
    assert numbers_by_key(parameters, list(numbers)) == numbers


@given(st.text(), st.booleans())
def test_every_text_can_be_split(text: str, plugins: bool) -> None:
    split_parameters(text, plugins)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("dbw", {}),
        ("dbw:8", {"k": 8.0}),
        ("dbw:8,seed=1e3", {"k": 8.0, "seed": 1000.0}),
        ("dbw:seed=-1", {"seed": -1.0}),
    ],
)
def test_numbers_are_found_by_their_keys_and_the_first_may_have_none(text: str, numbers: dict[str, float]) -> None:
    assert numbers_by_key(split_parameters(text)[1], ["k", "seed"]) == numbers


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("dbw:many", "k is 'many'; it must be a number"),
        ("dbw:seed=", "seed is ''; it must be a number"),
        ("dbw:8,9", "'9' must be key=value with a key out of k, seed"),
        ("dbw:sead=1", "'sead=1' must be key=value with a key out of k, seed"),
        ("dbw:=1", "'=1' must be key=value with a key out of k, seed"),
        ("dbw:8,k=9", "k is given twice"),
    ],
)
def test_what_is_no_number_by_a_known_key_is_explained(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason}$"):
        numbers_by_key(split_parameters(text)[1], ["k", "seed"])


def test_a_value_is_refused_where_there_are_no_parameters() -> None:
    with pytest.raises(ValueError, match=r"^'3' must be left out: there are no parameters$"):
        numbers_by_key(split_parameters("sync:3")[1], [])
