"""How much memory is free, from files that the system would give."""

import pytest

from impala_ms import memory
from impala_ms.errors import ConfigError

GIB = 2**30


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Writes the files that the system would give."""
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "GROUP", tmp_path)

    def write(available_gib, **group):
        text = f"MemTotal: 1 kB\nMemAvailable:   {available_gib * 2**20} kB\n"
        (tmp_path / "meminfo").write_text(text)
        for name, content in group.items():
            (tmp_path / f"memory.{name}").write_text(f"{content}\n")

    return write


def test_the_host_s_memory_counts_where_no_group_limits_it(system):
    system(7)
    assert memory.free_bytes() == 7 * GIB
    system(7, max="max", current=GIB, stat="inactive_file 0")
    assert memory.free_bytes() == 7 * GIB


def test_the_limit_of_a_container_counts_without_files_that_it_could_give_back(system):
    system(20, max=4 * GIB, current=3 * GIB, stat=f"anon 5\ninactive_file {2 * GIB}\nx 1")
    assert memory.free_bytes() == 3 * GIB
    system(1, max=4 * GIB, current=0, stat="anon 5")
    assert memory.free_bytes() == 1 * GIB


def test_a_replay_that_does_not_fit_is_refused_in_one_line(system):
    system(2)
    memory.check_room(2 * GIB, "trainer.replay_capacity", 1_000)
    with pytest.raises(ConfigError) as caught:
        memory.check_room(4 * GIB, "trainer.replay_capacity", 1_000)
    assert str(caught.value) == (
        "trainer.replay_capacity = 1,000: such a replay takes 4.0 GiB, and 2.0 GiB are free: "
        "give at most 500"
    )


@pytest.mark.parametrize(("size", "words"), [(3 * GIB // 2, "1.5 GiB"), (5 * 2**20, "5.0 MiB")])
def test_sizes_are_said_in_words(size, words):
    assert memory.in_words(size) == words
