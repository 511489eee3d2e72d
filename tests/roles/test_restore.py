"""What a run that goes on takes from its checkpoints."""

from types import SimpleNamespace

import pytest

from impala_ms import checkpoint
from impala_ms.roles.session import RoleSession


def restored(folder, best, newest, damaged=False):
    """The best return after a resume from ``update_1.ckpt``, beside ``best.ckpt``."""
    state = {"best_return": newest, "wall_time_s": 1.0, "totals": {}}
    checkpoint.save(folder, checkpoint.file_name(1), {}, state)
    if best is not None:
        file = checkpoint.save(folder, checkpoint.BEST, {}, {"best_return": best})
        if damaged:
            file.write_bytes(file.read_bytes()[:20])
    learner = SimpleNamespace(parameters_dict=dict)
    session = SimpleNamespace(
        config=SimpleNamespace(resume=True), process=SimpleNamespace(checkpoints=folder)
    )
    session.best_so_far = lambda saved: RoleSession.best_so_far(session, saved)
    return RoleSession.restore(session, learner, {"action": None})["best_return"]


@pytest.mark.parametrize(
    ("best", "newest", "expected"),
    [
        (200.0, 50.0, 200.0),  # the run was killed after the evaluation, before a checkpoint
        (200.0, None, 200.0),
        (200.0, 200.0, 200.0),
        (None, 50.0, 50.0),  # the file was removed
        (None, None, None),
    ],
)
def test_a_best_evaluation_after_the_newest_checkpoint_stays_the_best(
    tmp_path, best, newest, expected
):
    assert restored(tmp_path, best, newest) == expected


def test_a_damaged_best_checkpoint_does_not_stop_a_resume(tmp_path, caplog):
    assert restored(tmp_path, 200.0, 50.0, damaged=True) == 50.0
    assert "best.ckpt (missing, cut short or damaged)" in caplog.text
