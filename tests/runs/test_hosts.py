"""Ranks on two hosts, which are network namespaces with their own host names on this machine."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from impala_ms import doctor as impala_doctor
from tests.conftest import ROOT
from tests.runs.run import FOR_EVER, LAUNCHER

PREFIX = f"impala{os.getpid() % 10000}"
HERE, THERE = f"{PREFIX}a", f"{PREFIX}b"
NETWORK = "10.213.77"

# mpirun starts daemons on other hosts with this program, in place of `ssh HOST COMMAND`.
AGENT = f"""\
#!/bin/sh
shift
exec ip netns exec {THERE} unshare --uts sh -c 'hostname {THERE}; exec sh -c "$*"' sh "$@"
"""


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """``(hostfile, agent)`` of two hosts; ``AGENT`` starts a command on the second."""
    if os.geteuid() or not shutil.which("ip") or ip("netns", "add", HERE).returncode:
        pytest.skip("network namespaces need root and iproute2")
    try:
        ip("netns", "add", THERE)
        ip("link", "add", HERE, "type", "veth", "peer", "name", THERE)
        for number, name in ((1, HERE), (2, THERE)):
            ip("link", "set", name, "netns", name)
            ip("-n", name, "addr", "add", f"{NETWORK}.{number}/24", "dev", name)
            for device in ("lo", name):
                done = ip("-n", name, "link", "set", device, "up")
                assert done.returncode == 0, done.stderr
        folder = tmp_path_factory.mktemp("hosts")
        agent = folder / "agent.sh"
        agent.write_text(AGENT)
        agent.chmod(0o755)
        hostfile = folder / "hostfile"
        hostfile.write_text(f"{NETWORK}.1 slots=2\n{NETWORK}.2 slots=1\n")
        yield hostfile, agent
    finally:
        for name in (HERE, THERE):
            ip("netns", "del", name)


# Each of these commands becomes the next.
ON_THE_FIRST = ["ip", "netns", "exec", HERE, "unshare", "--uts", "sh", "-c"]
ON_THE_FIRST += [f'hostname {HERE}; exec "$@"', "sh"]


@pytest.fixture
def start_on_both(start, hosts):
    hostfile, agent = hosts

    def begin(*options):
        return start(
            *[3, "--hostfile", hostfile, *options],
            command=[*ON_THE_FIRST, *LAUNCHER],
            PRTE_MCA_plm_ssh_agent=str(agent),
            OMPI_MCA_btl="self,tcp",
            OMPI_MCA_btl_tcp_if_include=f"{NETWORK}.0/24",
        )

    return begin


def ranks_there(run):
    """The ranks that run on the second host."""
    pids = set(map(int, ip("netns", "pids", THERE).stdout.split()))
    return {rank for rank, pid in run.ranks().items() if pid in pids}


@pytest.mark.mpi
class TestTwoHosts:
    def test_training_ends_and_resumes_with_the_hostfile(self, start_on_both):
        run = start_on_both(*FOR_EVER)
        run.until_training()
        assert ranks_there(run) == {2}
        assert run.rows()[-1]["ranks_alive"] == 3
        assert run.stop()[0] == 130
        assert "--hostfile" in run.line("go on with")
        assert ip("netns", "pids", THERE).stdout == ""

    @pytest.mark.slow
    def test_actor_on_a_disconnected_host_is_replaced(self, start_on_both):
        """When the host is connected again, the old actor ends."""
        run = start_on_both(*FOR_EVER, "--heartbeat_s", "2")
        run.until_training()
        run.until(lambda: run.rows()[-1]["ranks_alive"] == 3)
        ip("-n", THERE, "link", "set", THERE, "down")
        run.until(lambda: f"env steps on host {THERE}: left out" in run.log(0))
        run.until(lambda: re.search("rank 2 takes part again", run.log(0)))
        ip("-n", THERE, "link", "set", THERE, "up")
        run.until(lambda: run.rows()[-1]["ranks_alive"] == 3)
        run.until(lambda: "told to stop" in run.log(2))
        assert run.stop()[0] == 130


def doctor(hosts, folder, *options):
    """Run the doctor on the first host."""
    hostfile, agent = hosts
    command = [
        *ON_THE_FIRST,
        sys.executable,
        "-m",
        "impala_ms",
        "doctor",
        "--hostfile",
        hostfile,
        *options,
    ]
    return subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=os.environ | {"PRTE_MCA_plm_ssh_agent": str(agent), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.mpi
class TestDoctor:
    @pytest.mark.slow
    def test_doctor_accepts_two_equal_hosts(self, hosts, tmp_path):
        done = doctor(hosts, tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        found = dict(re.findall(r"^ok  (.+?)  +(.+)$", done.stdout, re.M))
        assert found[f"host {HERE}"] == found[f"host {THERE}"] == "as here"
        assert found["hosts"] == "2 of 2 in hostfile answered"

    def test_doctor_names_a_host_with_other_code_and_without_the_folder(
        self, hosts, tmp_path, monkeypatch
    ):
        own = impala_doctor.about_host(str(tmp_path))
        other = own | {"host": "far", "sees": False, "code": "0123", "numpy": "1.0"}
        said = "\n".join(map(json.dumps, [own | {"sees": True}, other]))
        done = subprocess.CompletedProcess([], 0, said, "")
        monkeypatch.setattr(impala_doctor, "probe", lambda *_: done)
        monkeypatch.chdir(tmp_path)
        here, far, number = impala_doctor.hosts(hosts[0])
        assert (here.state, far.state, number.state) == ("ok", "BAD", "ok")
        assert f"numpy 1.0, here {own['numpy']}; code 0123, here {own['code']}" in far.what
        assert f"does not see {tmp_path}" in far.what

    def test_doctor_reports_a_host_that_does_not_answer(self, hosts, tmp_path):
        hostfile, _ = hosts
        nobody = tmp_path / "agent.sh"
        nobody.write_text("#!/bin/sh\necho no route to host >&2; exit 255\n")
        nobody.chmod(0o755)
        done = doctor((hostfile, nobody), tmp_path)
        assert done.returncode == 1
        assert "ssh HOST" in done.stdout


def test_missing_hostfile_is_named(start):
    run = start(2, "--hostfile", "nowhere")
    assert run.wait() == 2
    assert len(run.lines) == 1
    assert run.lines[0].startswith("--hostfile nowhere: there is no such file")
