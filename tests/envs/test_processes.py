"""Worker processes: they return what sync returns, never hang and leave no process behind."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from impala_ms.envs.make import MakeError, make_vec
from impala_ms.envs.processes import WorkerError
from tests.envs.contract import EnvironmentContract

COUNTING = "tests.fakes:Counting-v0"


def make(id=COUNTING, num_envs=3, vectorization="processes", processes=2, limit=None, **kwargs):
    return make_vec(
        id,
        num_envs=num_envs,
        seeds=list(range(num_envs)),
        vectorization=vectorization,
        kwargs=kwargs,
        max_episode_steps=limit,
        env_processes=processes,
    )


def rows(env, steps, action):
    """All that an actor gets from ``steps`` steps."""
    seen = [[np.copy(part) for part in leaves(env.reset())]]
    for step in range(steps):
        observation, *rest = env.step(action(step))
        mask = [] if env.action_mask is None else [env.action_mask]
        parts = [*leaves(observation), *rest, *mask, *env.finished]
        seen.append([np.copy(part) for part in parts])
    env.close()
    return seen


def leaves(observation):
    return observation.values() if isinstance(observation, dict) else [observation]


def gone(pid):
    """Whether a process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_until(condition, timeout_s=10.0):
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


class TestProcessCartPole(EnvironmentContract):
    def make(self, num_envs, seeds):
        return make_vec(
            "CartPole-v1",
            num_envs=num_envs,
            seeds=seeds,
            vectorization="processes",
            env_processes=2,
        )


@pytest.mark.parametrize(
    ("id", "kwargs", "action"),
    [
        ("CartPole-v1", {"limit": 11}, lambda step: np.full(3, step % 2)),
        (COUNTING, {"lengths": (2, 3, 5), "one_array": True}, lambda step: np.zeros(3, int)),
        ("tests.envs.fakes:Structured-v0", {}, lambda step: np.zeros(3, int)),
        ("tests.envs.fakes:Masked-v0", {}, lambda step: np.zeros(3, int)),
        ("tests.envs.fakes:Masked-v0", {"mask_in": "observation"}, lambda step: np.zeros(3, int)),
        ("Pendulum-v1", {"limit": 9}, lambda step: np.full((3, 1), step / 9, np.float32)),
    ],
)
def test_processes_return_the_same_rows_as_sync(id, kwargs, action):
    one = rows(make(id, vectorization="sync", **kwargs), 40, action)
    other = rows(make(id, **kwargs), 40, action)
    for a, b in zip(one, other, strict=True):
        for part_a, part_b in zip(a, b, strict=True):
            assert part_a.dtype == part_b.dtype
            np.testing.assert_array_equal(part_a, part_b)


class TestProcesses:
    def test_workers_are_at_most_one_per_environment_and_two_by_default(self):
        many, default = make(num_envs=2, processes=9), make(num_envs=2, processes=0)
        assert len(many.processes) == len(default.processes) == 2
        many.close()
        default.close()

    def test_close_ends_the_workers_at_once(self):
        env = make()
        pids = env.processes
        assert len(pids) == 2
        assert not any(gone(pid) for pid in pids)
        began = time.monotonic()
        env.close()
        env.close()
        assert time.monotonic() - began < 3
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)

    @pytest.mark.parametrize("end", ["kill", "leave"])
    def test_workers_end_with_their_parent(self, end):
        last = "os.kill(os.getpid(), 9)" if end == "kill" else "raise SystemExit(0)"
        script = textwrap.dedent(
            f"""
            import os
            from impala_ms.envs.make import make_vec
            env = make_vec("tests.envs.fakes:Dying-v0", num_envs=2, seeds=[0, 1],
                           vectorization="processes", kwargs={{"how": "hangs"}})
            env.reset()
            print(*env.processes, flush=True)
            for _ in range(2):
                env.step([0, 0])
            import threading
            if {end!r} == "kill":
                threading.Timer(0.5, lambda: os.kill(os.getpid(), 9)).start()
                env.step([0, 0])  # they never answer
            {last}
            """
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=30
        )
        pids = [int(pid) for pid in done.stdout.split()]
        assert len(pids) == 2, done.stderr
        wait_until(lambda: all(gone(pid) for pid in pids))

    def test_workers_import_a_module_of_the_user(self, tmp_path):
        (tmp_path / "my_slow_env.py").write_text(
            "import gymnasium\n"
            "from tests.fakes import CountingEnv\n"
            "gymnasium.register('Slow-v0', lambda: CountingEnv())\n"
        )
        script = (
            "from impala_ms.envs.make import make_vec\n"
            "raise SystemExit(make_vec('my_slow_env:Slow-v0', num_envs=2, seeds=[0, 0],"
            " vectorization='sync').reset().tolist() != [[0], [0]])\n"
        )
        subprocess.run([sys.executable, "-c", script], cwd=tmp_path, timeout=30, check=True)
        (tmp_path / "my_slow_env.py").write_text(
            "import gymnasium\n"
            "from tests.fakes import CountingEnv\n"
            "class SlowEnv(CountingEnv): pass\n"
            "gymnasium.register('Slow-v0', SlowEnv)\n"
        )
        subprocess.run(
            [sys.executable, "-c", script.replace("sync", "processes")],
            cwd=tmp_path,
            timeout=30,
            check=True,
        )


class TestFaults:
    def test_exception_of_an_environment_is_raised_with_the_traceback_of_the_worker(self):
        env = make(fails_at_step=3, lengths=(100,))
        env.reset()
        for _ in range(2):
            env.step(np.zeros(3, int))
        with pytest.raises(RuntimeError, match="step 3 of CountingEnv fails") as caught:
            env.step(np.zeros(3, int))
        assert "in step" in str(caught.value.__cause__)  # the traceback in the worker
        # Both workers fail at the same time: either may be the first.
        (note,) = caught.value.__notes__
        found = re.match(r"in step 3 of its episode, environment (0|1) of 3 \(tests.fakes:", note)
        share = {"0": "environments 0 to 0", "1": "environments 1 to 2"}[found[1]]
        assert share in str(caught.value.__cause__)
        assert env.processes == []
        with pytest.raises(WorkerError, match="have ended"):
            env.step(np.zeros(3, int))

    @pytest.mark.parametrize(
        ("how", "says"),
        [
            ("killed", r"the worker of environments \d to \d was killed by signal 9"),
            ("exits", r"the worker of environments \d to \d ended with exit code 3"),
            ("raises", "Unpicklable: no good"),
        ],
    )
    def test_dead_worker_is_an_error_within_seconds(self, how, says):
        env = make("tests.envs.fakes:Dying-v0", how=how)
        env.reset()
        for _ in range(2):
            env.step(np.zeros(3, int))
        pids, began = env.processes, time.monotonic()
        with pytest.raises(WorkerError, match=says):
            env.step(np.zeros(3, int))
        assert time.monotonic() - began < 5
        assert all(gone(pid) for pid in pids)

    def test_dead_worker_is_noticed_while_another_hangs(self):
        env = make("tests.envs.fakes:Dying-v0", how="hangs", others="killed")
        env.reset()
        for _ in range(2):
            env.step(np.zeros(3, int))
        pids = env.processes
        with pytest.raises(WorkerError, match="environments 1 to 2 was killed by signal 9"):
            env.step(np.zeros(3, int))
        assert all(gone(pid) for pid in pids)

    def test_worker_killed_between_steps_is_an_error(self):
        env = make()
        env.reset()
        os.kill(env.processes[1], signal.SIGKILL)
        with pytest.raises(WorkerError, match="environments 1 to 2 was killed by signal 9"):
            env.step(np.zeros(3, int))

    def test_worker_that_cannot_make_environments_is_a_make_error(self):
        with pytest.raises(MakeError, match=r"Counting-v0 cannot be made: .*'lenghts'"):
            make(lenghts=3)

    def test_exception_in_reset_is_raised(self):
        env = make(fails_in_reset=True)
        with pytest.raises(RuntimeError, match="the reset of CountingEnv fails"):
            env.reset()

    def test_unpicklable_environment_is_refused_in_one_line(self):
        import gymnasium

        gymnasium.register("Local-v0", lambda: None)
        try:
            with pytest.raises(MakeError, match="Local-v0 cannot be sent to worker") as caught:
                make("Local-v0")
        finally:
            del gymnasium.registry["Local-v0"]
        assert "\n" not in str(caught.value)
