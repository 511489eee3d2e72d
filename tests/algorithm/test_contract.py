"""What holds for every algorithm: its configuration, and a whole session in this process."""

import io
import signal
import time
from datetime import datetime
from types import SimpleNamespace

import gymnasium
import pytest

from impala_ms import checkpoint, config, run_dir
from impala_ms.classes import resolve
from impala_ms.cluster import topology
from impala_ms.comm.local import LocalTransport
from impala_ms.configuration import algorithms
from impala_ms.errors import ConfigError
from impala_ms.metrics.sinks import read_rows
from impala_ms.process import Run
from tests import compiled  # noqa: F401 (the device of this process)
from tests.configs import release
from tests.fakes import CountingEnv

ALL = algorithms.names()
every_algorithm = pytest.mark.parametrize("name", ALL)


def of_default(name):
    """The environment that an algorithm plays if nothing else is said."""
    return algorithms.module_of(name).collect_env_params["id"]


def counting(name):
    """A fake environment with actions of the same kind."""
    environment = gymnasium.make(of_default(name))
    box = isinstance(environment.action_space, gymnasium.spaces.Box)
    return f"tests.fakes:Counting{'Box' * box}-v0"


class TestConfiguration:
    @every_algorithm
    @pytest.mark.parametrize("ranks", [1, 2, 5])
    def test_loads_for_any_number_of_ranks(self, name, ranks):
        loaded = config.load(name, [], ranks)
        assert loaded.algorithm == name
        assert loaded.actors == max(1, ranks - 1)
        assert loaded.summary().startswith(f"{name} on {of_default(name)}: ")
        assert config.Config.from_json(loaded.to_json()) == loaded

    @every_algorithm
    @pytest.mark.parametrize("ranks", [1, 2, 5])
    def test_whoever_serves_a_rank_is_known_to_it(self, name, ranks):
        places = algorithms.Algorithm(name).places(ranks)
        assert len(places) == max(ranks, 2)  # one process is two of them
        serves = {(hub, spoke) for hub, place in enumerate(places) for spoke in place.hub_of}
        served = {(hub, spoke) for spoke, place in enumerate(places) for hub in place.spoke_of}
        assert serves == served != set()
        assert places[0].hub_of
        playing = [place.number for place in places if place.role in topology.ACTING]
        assert playing == list(range(1, len(playing) + 1))

    @every_algorithm
    def test_every_class_that_it_names_is_there(self, name):
        module = algorithms.module_of(name)
        named = [part["type"] for part in module.algorithm_config.values()]
        for one in (*named, module.wiring, module.work):
            assert callable(resolve(one)), one

    @every_algorithm
    def test_a_key_that_it_does_not_have_is_refused_in_one_line(self, name):
        for words in (["--set", "learner.nothing_like_it=1"], ["--nothing_like_it", "1"]):
            with pytest.raises(ConfigError) as caught:
                config.load(name, words, 3)
            (line,) = caught.value.problems
            assert "nothing_like_it" in line
            assert "\n" not in line

    @every_algorithm
    def test_every_column_has_a_unit_and_a_sentence(self, name):
        for column, (unit, meaning) in algorithms.columns(name).items():
            assert isinstance(unit, str), column
            assert meaning[0].isupper() or meaning[0].isdigit(), column
            assert meaning.endswith("."), column


EVERY, EPISODES = 5, 2  # updates between evaluations; episodes of each
STEPS = 600
OPTIONS = (
    *("--num_envs", "2", "--unroll_length", "5"),
    # An episode of nine steps is never counted: its last step pays NaN.
    *("--set", "collect_env.kwargs={lengths: [3, 5, 9], nan_at_step: 9, name: collect}"),
    *("--set", "eval_env.kwargs={lengths: [4], name: eval}", "--hidden_sizes", "[4]"),
    *("--eval_interval_updates", str(EVERY), "--eval_episodes", str(EPISODES)),
    *("--log_interval_s", "0.000001", "--checkpoint_interval_s", "0.000001"),
    *("--tensorboard", "false"),
)
# Where the algorithm has such a key: an update for each unroll, and a replay beside new unrolls.
OWN = {
    "trainer.batch_size": "4",
    "trainer.replay_fraction": "0.5",
    "trainer.replay_capacity": "100",
    "trainer.replay_start": "10",
    "learner.n_step": "3",
    "learner.updates_per_call": "1",
    "trainer.replay_ratio": "0.4",
    "trainer.priority_exponent": "0.6",
}


@pytest.fixture(scope="module", autouse=True)
def hangs_fail():
    def fail(*_):
        raise TimeoutError("hub and spoke wait for each other")

    before = signal.signal(signal.SIGALRM, fail)
    yield
    signal.signal(signal.SIGALRM, before)


def play(folder, name, options):
    """A whole session with N = 1; what it began with, and what it saved when."""
    loaded = config.load(name, options, 1)
    made = run_dir.prepare_run_dir(loaded, started=datetime(2026, 3, 4))
    console = io.StringIO()
    run = Run(loaded, made, 0, loaded.places[0], *LocalTransport.connect(2), console, time.time())
    played = SimpleNamespace(saved=[], folder=folder)
    before = CountingEnv.steps_of.copy()

    class Watched(resolve(loaded.algorithm_config["session"]["type"])):
        def build_learning(self, *arguments):
            trainer = super().build_learning(*arguments)
            played.began_with = trainer.loop.learner.named_parameters()
            return trainer

    def save(folder, name, parameters, state):
        steps = CountingEnv.steps_of["collect"] - before["collect"]
        played.saved.append(SimpleNamespace(name=name, totals=state["totals"], steps=steps))
        return write(folder, name, parameters, state)

    write = checkpoint.save
    signal.alarm(120)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save", save)
        session = Watched(run)
        try:
            session.run()
        finally:
            signal.alarm(0)
            session.close()
            session.release()
            release(made)
    played.steps = CountingEnv.steps_of - before
    played.summary, played.rows = session.summary(), read_rows(made / "metrics.csv")
    played.newest = checkpoint.latest(run.checkpoints)
    played.best = checkpoint.load(run.checkpoints / checkpoint.BEST)[1]
    return played


@pytest.fixture(scope="module", params=ALL)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def run(name, tmp_path_factory):
    folder = tmp_path_factory.mktemp(name) / "run"
    keys = algorithms.Algorithm(name).keys
    own = [f"--set={key}={value}" for key, value in OWN.items() if key in keys]
    place = ["--run_dir", str(folder), "--total_env_steps", str(STEPS), "--env", counting(name)]
    return play(folder, name, [*OPTIONS, *own, *place])


@pytest.fixture(scope="module")
def resumed(run, name):
    first, saved = len(run.rows), run.newest[1]
    options = ["--resume", str(run.folder), "--total_env_steps", str(STEPS + 60)]
    again = play(run.folder, name, options)
    again.rows_before, again.saved_before = first, saved
    return again


def accounted(totals):
    return sum(totals[f"env_steps{kind}"] for kind in ("", "_dropped", "_waiting"))


class TestSession:
    def test_every_step_that_was_made_is_counted_once(self, run):
        checkpoints = [saved for saved in run.saved if saved.name != checkpoint.BEST]
        assert len(checkpoints) > 10
        for saved in checkpoints:
            assert accounted(saved.totals) == saved.steps
            assert 0 <= saved.totals["env_steps_waiting"] < 20  # less than an update takes
        steps = [saved.totals["env_steps"] for saved in checkpoints]
        assert steps == sorted(set(steps))
        summary = run.summary
        assert STEPS <= summary["env_steps"] < STEPS + 20
        assert summary["env_steps_dropped"] > 0  # of unrolls with a NaN
        assert summary["env_steps"] + summary["env_steps_dropped"] == run.steps["collect"]

    def test_rows_of_metrics_are_complete(self, run, name):
        rows = run.rows
        assert list(rows[0]) == list(algorithms.columns(name))
        assert None not in rows[-1].values()
        assert [row["updates"] for row in rows] == list(range(1, len(rows) + 1))
        for row in rows:
            assert row["env_frames"] == row["env_steps"]
            if "replay_rows" not in row:  # those that are kept need not be learned from
                assert row["env_steps"] <= row["rows_learned"]
            assert (row["policy_lag_max"], row["ranks_alive"], row["updates_skipped"]) == (0, 1, 0)
        assert rows[-1]["env_steps"] == run.summary["env_steps"]

    def test_returns_are_those_of_the_episodes_that_were_accepted(self, run):
        row = run.rows[-1]
        assert 3.0 < row["episode_return_mean"] == row["episode_length_mean"] <= 5.0

    def test_evaluations_are_at_their_interval_and_of_other_environments(self, run):
        last = run.rows[-1]["updates"]
        found = [row["eval_version"] for row in run.rows if row["eval_version"] is not None]
        assert sorted(set(found)) == list(range(EVERY, int(last), EVERY))
        assert {row["eval_return_mean"] for row in run.rows} == {None, 4.0}
        assert (run.best["eval_version"], run.best["eval_returns"]) == (EVERY, [4.0] * EPISODES)
        assert run.steps["eval"] >= 4 * EPISODES * len(set(found))

    def test_a_resumed_run_begins_with_what_was_saved_bit_for_bit(self, run, resumed):
        saved = resumed.saved_before
        assert set(saved) == set(resumed.began_with)
        for parameter, values in saved.items():
            assert resumed.began_with[parameter].tobytes() == values.tobytes(), parameter
        fresh, last = run.began_with, resumed.newest[1]
        assert any(fresh[one].tobytes() != saved[one].tobytes() for one in saved)
        assert any(last[one].tobytes() != saved[one].tobytes() for one in saved)

    def test_a_resumed_run_goes_on_counting(self, run, resumed):
        before = accounted(run.newest[2]["totals"])
        checkpoints = [saved for saved in resumed.saved if saved.name != checkpoint.BEST]
        assert checkpoints
        for saved in checkpoints:
            assert accounted(saved.totals) == before + saved.steps
            assert 0 <= saved.totals["env_steps_waiting"] < 20
        assert resumed.rows[: resumed.rows_before] == run.rows
        updates = [row["updates"] for row in resumed.rows]
        assert updates == list(range(1, len(updates) + 1))
        assert resumed.summary["env_steps"] >= STEPS + 60
        episodes = [row["episodes"] for row in resumed.rows]
        assert episodes == sorted(episodes)
