"""Scenarios give the runs that they say, and wrong ones are refused with what is wrong about them."""

import sys
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest
from msgspec.structs import asdict, replace

from dbw_controller.core.policies import POLICIES
from dbw_controller.named_policies import policy_from
from dbw_experiments.laboratory.runs import Run
from dbw_experiments.laboratory.scenario import Scenario, ScenarioError, load_scenario, names
from dbw_experiments.laboratory.training import Place, execute
from dbw_worker.delays import parse_delay

HEAD = 'title = "What is compared"\nfigure = "Fig:One"\nplot = "times"\n'
SETTING = '[setting]\nmodel = "mlp"\ndataset = "digits"\nworkers = 4\nbatch = 8\ndelay = "exp:1"\ntarget_loss = 0.5\n'
DBW = '[[compare]]\npolicy = "dbw"\nrule = "largest"\nrate = 0.1\n'
STATIC = '[[compare]]\npolicy = "static"\nrule = "proportional"\nk = "all"\nrate_per_k = 0.02\n'
SMALL = HEAD + SETTING + DBW


def scenario(folder: Path, text: str, quick: bool = False) -> Scenario:
    file = folder / "mine.toml"
    file.write_text(text)
    return load_scenario(str(file), quick)


@pytest.mark.parametrize("quick", [False, True], ids=["full", "quick"])
@pytest.mark.parametrize("name", names())
def test_every_scenario_that_comes_with_the_program_can_be_used(name: str, quick: bool) -> None:
    found = load_scenario(name, quick)
    assert (found.name, found.quick) == (name, quick)
    assert found.title
    assert found.figure
    runs = found.runs()
    assert runs
    assert len(set(runs)) == len(runs)
    for run in runs:
        policy_from(run.policy)
        parse_delay(run.delay, Path(found.folder))
        assert run.rate > 0
        assert run.workers >= 1
    assert {run.case for run in runs} == {case.name for case in found.cases}


@pytest.mark.parametrize("name", names())
def test_quick_runs_use_few_seeds(name: str) -> None:
    quick, full = load_scenario(name, quick=True).runs(), load_scenario(name).runs()
    assert len(quick) <= len(full)
    assert {run.seed for run in quick} <= set(range(3))
    assert {run.case for run in quick} == {run.case for run in full}


def test_there_are_scenarios() -> None:
    assert "round-trip-times" in names()


def test_a_scenario_of_ones_own_is_read_from_a_file(tmp_path: Path) -> None:
    found = scenario(tmp_path, SMALL + STATIC)
    dbw = Run(
        model="mlp",
        dataset="digits",
        workers=4,
        batch=8,
        delay="exp:1",
        seed=0,
        policy="dbw",
        rule="largest",
        rate=0.1,
        target_loss=0.5,
    )
    assert found.name == "mine"
    assert found.runs() == [
        dbw,
        replace(dbw, policy="static:1", rule="proportional", rate=0.02),
        replace(dbw, policy="static:2", rule="proportional", rate=0.04),
        replace(dbw, policy="static:3", rule="proportional", rate=0.06),  # not 0.06000000000000000055
        replace(dbw, policy="static:4", rule="proportional", rate=0.08),
    ]


def test_a_case_goes_before_the_setting_and_the_quick_form_before_both(tmp_path: Path) -> None:
    cases = '[[case]]\nname = "a"\n[[case]]\nname = "b"\nworkers = 9\ndelay = "constant:1"\n'
    text = SMALL + cases + "[quick]\nworkers = 2\n"
    full, quick = scenario(tmp_path, text).runs(), scenario(tmp_path, text, quick=True).runs()
    assert [(run.case, run.workers, run.delay) for run in full] == [("a", 4, "exp:1"), ("b", 9, "constant:1")]
    assert [(run.case, run.workers, run.delay) for run in quick] == [("a", 2, "exp:1"), ("b", 2, "constant:1")]


def test_a_trace_is_looked_for_beside_its_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the program was started; runs are the same then, whoever's folder they were made in."""
    (tmp_path / "slow.csv").write_text("step,worker,seconds\n0,0,5.5\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = scenario(tmp_path, SMALL.replace("exp:1", "trace:slow.csv"))
    (run,) = found.runs()
    assert run.delay == "trace:slow.csv"
    assert execute([replace(run, iterations=2)], Place(traces=found.folder))[0].seconds == 11.0


def test_a_run_is_another_when_its_trace_or_the_file_of_its_model_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trace, model = tmp_path / "mine.csv", tmp_path / "mine.py"
    text = SMALL.replace("exp:1", "trace:mine.csv,scale=2").replace('"mlp"', '"mine.py:build"')
    found = set()
    for seconds, size in ((1, 8), (7, 8), (7, 9)):
        trace.write_text(f"step,worker,seconds\n0,0,{seconds}\n")
        model.write_text(f"SIZE = {size}\n")
        found |= {run.files for run in scenario(tmp_path, text).runs()}
    assert len(found) == 3
    assert {run.files for run in scenario(tmp_path, SMALL).runs()} == {""}


POLICY = """from dataclasses import dataclass
from typing import ClassVar

from dbw_controller.core.policies import Choice, Observation
from dbw_controller.core.reasons import Reason


@dataclass(frozen=True)
class Mine:
    k: int = {k}
    inputs: ClassVar[frozenset[str]] = frozenset()

    def choose(self, seen: Observation) -> Choice:
        return Choice(min(self.k, seen.workers), Reason.CUSTOM, "always")
"""


@pytest.mark.parametrize(("place", "file"), [("mine.py", "mine.py"), ("mine_package.rules", "mine_package/rules.py")])
def test_a_run_is_another_when_the_file_of_its_policy_changes_and_runs_of_other_policies_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, file: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / file).parent.mkdir(exist_ok=True)
    found = set()
    for k in (3, 4):
        (tmp_path / file).write_text(POLICY.format(k=k))
        with patch.dict(POLICIES):
            own, other = scenario(tmp_path, SMALL.replace('"dbw"', f'"{place}:Mine:k=2"') + DBW).runs()
        assert (own.policy, other.policy, other.files) == (f"{place}:Mine:k=2", "dbw", "")
        found.add(own.files)
    assert len(found) == 2


def test_all_settings_reach_the_runs(tmp_path: Path) -> None:
    further = (
        'seeds = 1\nsync_mode = "pull"\nsplit = true\niterations = 70\nseconds = 9\n'
        'detail = "curves"\naccuracy_every = 5\nexact_every = 6\ntarget_every = 7\n'
        'optimizer = "sgd:momentum=0.9"\nschedule = "steplr:step_size=9"\nrate_exponent = 1\n'
        'label_noise = 0.1\nmembership = "0@9"\n'
    )
    (run,) = scenario(tmp_path, HEAD + SETTING + further + DBW).runs()
    expected = {
        "sync_mode": "pull",
        "split": True,
        "target_loss": 0.5,
        "iterations": 70,
        "seconds": 9.0,
        "detail": "curves",
        "accuracy_every": 5,
        "exact_every": 6,
        "target_every": 7,
        "optimizer": "sgd:momentum=0.9",
        "schedule": "steplr:step_size=9",
        "rate_exponent": 1.0,
        "label_noise": 0.1,
        "membership": "0@9",
    }
    assert expected.items() <= asdict(run).items()


@pytest.mark.parametrize(("text", "expected"), [("false", False), ("true", True), ('"by-label"', "by-label")])
def test_data_are_split_as_the_scenario_says(tmp_path: Path, text: str, expected: bool | str) -> None:
    (run,) = scenario(tmp_path, HEAD + SETTING + f"split = {text}\n" + DBW).runs()
    assert run.split == expected
    assert msgspec.json.decode(msgspec.json.encode(run), type=Run) == run


def test_a_run_is_the_same_that_was_kept_before_there_was_more_to_say(tmp_path: Path) -> None:
    """So that results of earlier versions are found again."""
    (run,) = scenario(tmp_path, SMALL).runs()
    kept = (
        b'{"model":"mlp","dataset":"digits","workers":4,"batch":8,"policy":"dbw","rate":0.1,"rule":"largest",'
        b'"delay":"exp:1","seed":0,"target_loss":0.5}'
    )
    assert msgspec.json.decode(kept, type=Run) == run


def test_seeds_are_those_of_the_scenario_unless_a_policy_has_its_own(tmp_path: Path) -> None:
    text = HEAD + SETTING + "seeds = 2\n" + DBW + "seeds = 5\n" + STATIC + "[quick]\nseeds = 1\n"
    full, quick = scenario(tmp_path, text).runs(), scenario(tmp_path, text, quick=True).runs()
    assert [run.seed for run in full if run.policy == "dbw"] == [0, 1, 2, 3, 4]
    assert [run.seed for run in full if run.policy == "static:3"] == [0, 1]
    assert {run.seed for run in quick} == {0}


def test_rates_can_be_given_for_each_k(tmp_path: Path) -> None:
    text = (
        HEAD + SETTING + '[[compare]]\npolicy = "static"\nrule = "knee"\nk = [1, 3, 9]\nrate = 0.5\nrates = {1 = 0.2}\n'
    )
    assert [(run.policy, run.rate) for run in scenario(tmp_path, text).runs()] == [("static:1", 0.2), ("static:3", 0.5)]


def test_what_is_asked_for_twice_is_run_once(tmp_path: Path) -> None:
    assert scenario(tmp_path, SMALL + DBW).runs() == scenario(tmp_path, SMALL).runs()
    more = scenario(tmp_path, SMALL + DBW + "seeds = 3\n").runs()
    assert [run.seed for run in more] == [0, 1, 2]
    other_rule = DBW.replace("largest", "knee")
    assert [run.rule for run in scenario(tmp_path, SMALL + other_rule).runs()] == ["largest", "knee"]


WRONG = {
    "unknown key": (HEAD + SETTING + "wrokers = 5\n" + DBW, "wrokers"),
    "unknown key of a case": (SMALL + '[[case]]\nnaem = "a"\n', "naem"),
    "unknown key of a policy": (SMALL + "ratio = 3\n", "ratio"),
    "unknown key at the top": ("workers = 4\n" + SMALL, "workers"),
    "unknown key of the quick form": (SMALL + "[quick]\nsedes = 2\n", "sedes"),
    "wrong type": (SMALL.replace("workers = 4", 'workers = "four"'), r"int.*str.*workers"),
    "wrong sync mode": (HEAD + SETTING + 'sync_mode = "push"\n' + DBW, "push"),
    "missing title": (SMALL.replace("title", "# title"), "title"),
    "missing model": (SMALL.replace("model", "# model"), "model"),
    "missing rate": (SMALL.replace("rate =", "# rate ="), "dbw needs a rate"),
    "missing rate of a k": (
        SMALL + STATIC.replace("rate_per_k = 0.02", "rates = {1 = 0.1, 2 = 0.1}"),
        "static needs a rate.* for k = 3",
    ),
    "unknown policy": (SMALL.replace('"dbw"', '"bdw"'), "bdw.*adasync, b-dbw, dbw, dbw-plus, static, sync"),
    "wrong k": (SMALL + STATIC.replace('"all"', "[0]"), "int.* >= 1"),
    "no such k": (HEAD + SETTING + STATIC.replace('"all"', "[9]"), "no runs"),
    "k of another policy": (SMALL + "k = [1]\n", "static.*k"),
    "no workers": (SMALL.replace("workers = 4", "workers = 0"), ">= 1.*workers"),
    "a rate that is no rate": (SMALL.replace("rate = 0.1", "rate = -0.1"), "> 0.*rate"),
    "unknown plot": (SMALL.replace("times", "pie"), "pie.*curves, durations, estimators, speeds, times"),
    "no k": (SMALL + '[[compare]]\npolicy = "static"\nrule = "knee"\nrate = 0.1\n', "static.*k"),
    "wrong delay": (SMALL.replace("exp:1", "expo:1"), "expo:1.*needs to begin with one of none, constant"),
    "wrong trace": (SMALL.replace("exp:1", "trace:nowhere.csv"), "nowhere.csv"),
    "not TOML": (SMALL.replace("[setting]", "[setting"), "line 4"),
    "no target": (SMALL.replace("target_loss = 0.5\n", ""), '"times" needs a target_loss'),
    "curves without detail": (SMALL.replace('"times"', '"curves"'), '"curves" needs detail = "curves"'),
    "durations without estimates": (SMALL.replace('"times"', '"durations"'), "needs detail"),
    "estimators without exact values": (
        SMALL.replace('"times"', '"estimators"').replace("batch = 8", 'batch = 8\ndetail = "estimates"'),
        "needs exact_every",
    ),
    "measurements that nobody keeps": (SMALL.replace("batch = 8", "batch = 8\naccuracy_every = 5"), "need detail"),
    "cases without names": (SMALL + "[[case]]\n[[case]]\nbatch = 9\n", "each case needs a name"),
    "rates of one rule": (SMALL + DBW.replace("0.1", "0.4"), "a rule, of its own"),
    "no such case": (SMALL + 'cases = ["a"]\n[[case]]\nname = "b"\n' + DBW, "there is no case 'a'; there are b"),
    "rates of a policy without k": (SMALL + "rate_per_k = 0.1\n", "neither rates nor rate_per_k"),
    "unknown optimiser": (HEAD + SETTING + 'optimizer = "sdg"\n' + DBW, "optimizer is 'sdg'; it must be NAME"),
    "wrong optimiser": (HEAD + SETTING + 'optimizer = "sgd:momentum=-1"\n' + DBW, "Invalid momentum value"),
    "optimiser with a rate": (HEAD + SETTING + 'optimizer = "sgd:lr=0.1"\n' + DBW, "without lr, which is the rate"),
    "unknown schedule": (HEAD + SETTING + 'schedule = "step"\n' + DBW, "schedule is 'step'; it must be NAME"),
    "wrong schedule": (HEAD + SETTING + 'schedule = "steplr"\n' + DBW, "given with step_size"),
    "too much label noise": (HEAD + SETTING + "label_noise = 1\n" + DBW, "< 1.*label_noise"),
    "label noise below zero": (HEAD + SETTING + "label_noise = -0.1\n" + DBW, ">= 0.*label_noise"),
    "rate exponent below zero": (HEAD + SETTING + "rate_exponent = -1\n" + DBW, ">= 0.*rate_exponent"),
    "wrong split": (HEAD + SETTING + 'split = "by-worker"\n' + DBW, "by-worker.*split"),
    "wrong membership": (HEAD + SETTING + 'membership = "0"\n' + DBW, "membership '0' needs workers"),
    "workers that are not there": (HEAD + SETTING + 'membership = "4@9"\n' + DBW, "'4@9' needs workers from 0 to 3"),
    "nobody left": (HEAD + SETTING + 'membership = "0-3@9"\n' + DBW, "all workers be away at 9 s"),
    "durations of workers that leave": (
        HEAD.replace("times", "durations") + SETTING + 'detail = "estimates"\nmembership = "0@9"\n' + DBW,
        "needs workers that stay",
    ),
    "one policy instead of a list": (SMALL.replace("[[compare]]", "[compare]"), "array.*compare"),
}


@pytest.mark.parametrize(("text", "complaint"), WRONG.values(), ids=WRONG)
def test_a_wrong_scenario_is_refused_with_what_is_wrong(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ScenarioError, match=complaint):
        scenario(tmp_path, text, quick="[quick]" in text)


def test_each_wrong_scenario_is_wrong_in_one_thing_only(tmp_path: Path) -> None:
    assert len(scenario(tmp_path, SMALL + STATIC).runs()) == 5
    assert len(scenario(tmp_path, SMALL + "[quick]\nseeds = 2\n", quick=True).runs()) == 2


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(b'title = "\xff"')
    with pytest.raises(ScenarioError, match=r"mine\.toml"):
        load_scenario(str(tmp_path / "mine.toml"))


def test_a_scenario_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    for place in ("nowhere", str(tmp_path / "nowhere.toml"), str(tmp_path), ""):
        with pytest.raises(ScenarioError, match=r"there is no scenario .*round-trip-times"):
            load_scenario(place)


@pytest.mark.parametrize(
    "text",
    [SMALL + '[case]\nname = "a"\n', "setting = 3\n" + HEAD + DBW, "case = [1]\n" + SMALL, "quick = 3\n" + SMALL],
    ids=["[case]", "setting", "case", "quick"],
)
def test_a_table_of_the_wrong_kind_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ScenarioError):
        scenario(tmp_path, text, quick=True)
