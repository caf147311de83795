"""A real agent with real children, signals and deaths, under a master that the test plays."""

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from godmw.protocol import messages as msg
from tests.fakes.router import TOKEN, ScriptedMaster
from tests.integration.processes import alive, children, ended, freeze, godmw, letter, wait_until

SLEEPER = """
import json, os, subprocess, sys, time
# a worker with a child of its own, and one that has left its session and its parent
inside = subprocess.Popen(["sleep", "300"])
fork = os.fork()
if fork == 0:
    os.setsid()
    if os.fork() == 0:
        name = sys.argv[1] + os.environ["GODMW_WORKER"] + ".daemon"
        with open(name, "w") as file:
            file.write(str(os.getpid()))
        os.rename(name, name + ".pid")
        time.sleep(300)
    os._exit(0)
os.waitpid(fork, 0)
told = {"inside": inside.pid, "env": dict(os.environ), "argv": sys.argv}
path = sys.argv[1] + os.environ["GODMW_WORKER"]
with open(path + ".tmp", "w") as file:
    json.dump(told, file)
os.rename(path + ".tmp", path + ".json")
time.sleep(300)
"""
ENDER = "import os, sys; print('out'); print('last words', file=sys.stderr); sys.stdout.flush(); "


@pytest.fixture
def master(tmp_path: Path) -> Iterator[ScriptedMaster]:
    scripted = ScriptedMaster(run_dir=str(tmp_path))
    yield scripted
    scripted.close()


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "script.py"
    path.write_text(text)
    return str(path)


def environment(master: ScriptedMaster) -> dict[str, str]:
    return {"GODMW_JOIN": master.join.format()}


def kin_of(tmp_path: Path, *workers: str) -> list[int]:
    """The pids of the descendants of sleepers, once they are all there."""
    pids = []
    for worker in workers:
        told, daemon = tmp_path / f"{worker}.json", tmp_path / f"{worker}.daemon.pid"
        wait_until(lambda told=told, daemon=daemon: told.exists() and daemon.exists(), what=f"{worker} runs")
        pids += [json.loads(told.read_text())["inside"], int(daemon.read_text())]
    return pids


# ---------------------------------------------------------------- exits


@pytest.mark.parametrize(
    ("ending", "code", "signum"),
    [
        ("sys.exit(0)", 0, 0),
        ("sys.exit(3)", 3, 0),
        ("os.kill(os.getpid(), 9)", 0, 9),
        ("raise ValueError('x')", 1, 0),
    ],
)
def test_an_exit_is_reported_with_its_last_words(
    master: ScriptedMaster, tmp_path: Path, ending: str, code: int, signum: int
) -> None:
    with godmw("worker", script(tmp_path, ENDER + ending), env=environment(master)) as agent:
        assert master.welcome().slots == 1
        pid = master.launch("w0").pid
        exited = master.expect(msg.ChildExited)
        assert (exited.worker, exited.incarnation, exited.code, exited.signal) == ("w0", 1, code, signum)
        assert exited.last_words.startswith("last words\n")
        assert ("ValueError: x" in exited.last_words) == (code == 1)
        assert not alive(pid)
        master.finish(code)
        status, out, err = ended(agent)
    assert status == code
    assert out == "out\n"
    assert "last words\n" in err
    assert b"out\n" in (tmp_path / "logs" / "w0.log").read_bytes()


def test_an_exit_is_told_within_20_ms(master: ScriptedMaster, tmp_path: Path) -> None:
    with godmw("worker", script(tmp_path, "import time; time.sleep(300)"), env=environment(master)):
        master.welcome()
        took = []
        for incarnation in range(1, 8):
            pid = master.launch("w0", incarnation).pid
            began = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            report = master.expect(msg.ChildExited)
            took.append(master.heard[-1][0] - began)
            assert (report.incarnation, report.signal) == (incarnation, 9)
    assert sorted(took)[3] < 0.02, took  # the median: this machine has other things to do


def test_long_last_words_keep_their_end(master: ScriptedMaster, tmp_path: Path) -> None:
    text = "import sys; sys.stderr.write('x' * 300_000 + 'the end'); sys.exit(1)"
    with godmw("worker", script(tmp_path, text), env=environment(master)):
        master.welcome()
        master.launch("w0")
        words = master.expect(msg.ChildExited).last_words
    assert len(words) == 8192
    assert words.endswith("xthe end")


def test_a_stopped_child_is_told_of_at_once(master: ScriptedMaster, tmp_path: Path) -> None:
    with godmw("worker", script(tmp_path, "import time; time.sleep(300)"), env=environment(master)):
        master.welcome()
        pid = master.launch("w0").pid
        began = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        master.expect(msg.AgentBeat, when=lambda beat: beat.children[0].process == "T")
        assert master.heard[-1][0] - began < 0.2
        master.say(msg.Terminate(worker="w0", incarnation=1, signal=9))
        assert master.expect(msg.ChildExited).signal == 9


def test_what_a_worker_leaves_behind_is_ended_with_it(master: ScriptedMaster, tmp_path: Path) -> None:
    with godmw("worker", script(tmp_path, SLEEPER), f"{tmp_path}/", env=environment(master)):
        master.welcome()
        first, second = master.launch("w0", slot=0).pid, master.launch("w1", slot=1).pid
        left = kin_of(tmp_path, "w0")
        others = kin_of(tmp_path, "w1")
        os.kill(first, signal.SIGKILL)
        master.expect(msg.ChildExited)
        wait_until(lambda: not any(map(alive, left)), 5.0, "the first one's descendants end")
        assert all(map(alive, [second, *others]))


# ---------------------------------------------------------------- what a worker is given


def test_the_environment_of_a_worker(master: ScriptedMaster, tmp_path: Path) -> None:
    args = ["--nproc", "2", script(tmp_path, SLEEPER), f"{tmp_path}/", "--json", "-m", "x"]
    with godmw("worker", *args, env={**environment(master), "CUDA_VISIBLE_DEVICES": ""}):
        hello = master.welcome()
        assert (hello.slots, hello.token, hello.host) == (2, TOKEN, socket.gethostname())
        master.launch("w7", incarnation=4, slot=1)
        kin_of(tmp_path, "w7")
    told = json.loads((tmp_path / "w7.json").read_text())
    env = told["env"]
    assert told["argv"][2:] == ["--json", "-m", "x"]
    cores = len(os.sched_getaffinity(0))
    expected = {
        "GODMW_JOIN": f"godmw://127.0.0.1:{master.port}/{TOKEN}", "GODMW_WORKER": "w7",
        "GODMW_INCARNATION": "4", "GODMW_AGENT": master.sender,
        "GODMW_RUN_DIR": str(tmp_path), "GODMW_SLOT": "1", "RANK": "1",
        "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(master.port),
        "OMP_NUM_THREADS": str(max(1, cores // 2)), "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    assert {name: env.get(name) for name in expected} == expected


def test_output_of_the_lowest_worker_passes_and_tee_shows_all(
    master: ScriptedMaster, tmp_path: Path
) -> None:
    text = "import os, sys, time; print('I am', os.environ['GODMW_WORKER']); time.sleep(300)"
    for flags, expected in (([], ["I am w1"]), (["--tee"], ["[w1] I am w1", "[w2] I am w2"])):
        with godmw("worker", *flags, script(tmp_path, text), env=environment(master)) as agent:
            master.welcome()
            for slot, worker in enumerate(("w1", "w2")):
                log = tmp_path / "logs" / f"{worker}.log"
                log.unlink(missing_ok=True)
                master.launch(worker, slot=slot)
                wait_until(lambda log=log: log.exists() and log.read_text().endswith("\n"), what="the log")
            for worker in ("w1", "w2"):
                master.say(msg.Terminate(worker=worker, incarnation=1, signal=9))
            master.finish()
            _, out, _ = ended(agent)
        assert sorted(out.splitlines()) == expected


# ---------------------------------------------------------------- nothing is orphaned


@pytest.mark.parametrize("stopped", [False, True])
def test_sigkill_of_an_agent_ends_all_it_started(
    master: ScriptedMaster, tmp_path: Path, stopped: bool
) -> None:
    with godmw("worker", script(tmp_path, SLEEPER), f"{tmp_path}/", env=environment(master)) as agent:
        master.welcome()
        pids = [master.launch("w0", slot=0).pid, master.launch("w1", slot=1).pid]
        pids += kin_of(tmp_path, "w0", "w1")
        assert all(map(alive, pids))
        if stopped:
            for pid in [*pids, agent.pid]:
                freeze(pid)
        agent.kill()
        took = wait_until(lambda: not any(map(alive, pids)), 5.0, f"{pids} end")
        agent.communicate(timeout=5)
    assert took < 5.0


def test_the_keeper_killed_first_is_replaced(master: ScriptedMaster, tmp_path: Path) -> None:
    with godmw("worker", script(tmp_path, SLEEPER), f"{tmp_path}/", env=environment(master)) as agent:
        master.welcome()
        worker = master.launch("w0").pid
        pids = [worker, *kin_of(tmp_path, "w0")]
        (keeper,) = set(children(agent.pid)) - {*pids}
        os.kill(keeper, signal.SIGKILL)
        wait_until(lambda: set(children(agent.pid)) - {*pids, keeper}, what="another keeper")
        agent.kill()
        wait_until(lambda: not any(map(alive, pids)), 5.0, f"{pids} end")


@pytest.mark.parametrize(("signals", "code"), [([15], 75), ([2], 75), ([2, 2], 130), ([15, 15], 143)])
def test_signals_to_an_agent(master: ScriptedMaster, tmp_path: Path, signals: list[int], code: int) -> None:
    with godmw("worker", script(tmp_path, SLEEPER), f"{tmp_path}/", env=environment(master)) as agent:
        master.welcome()
        worker = master.launch("w0").pid
        pids = [worker, *kin_of(tmp_path, "w0")]
        agent.send_signal(signals[0])
        assert master.expect(msg.Drain) == msg.Drain(token=TOKEN, worker="w0")
        if len(signals) == 2:
            agent.send_signal(signals[1])
        else:
            os.kill(worker, signal.SIGKILL)  # as if it had drained
        status, _, _ = ended(agent)
        assert status == code
        wait_until(lambda: not any(map(alive, pids)), 5.0, "nothing is left")


# ---------------------------------------------------------------- the master


def test_the_master_goes_and_comes_back(master: ScriptedMaster, tmp_path: Path) -> None:
    with godmw("worker", script(tmp_path, "import time; time.sleep(300)"), env=environment(master)) as agent:
        master.welcome()
        first, second = master.launch("w0", slot=0).pid, master.launch("w1", slot=1).pid
        master.close()
        os.kill(second, signal.SIGKILL)
        wait_until(lambda: not alive(second))
        back = ScriptedMaster(port=master.port, term=2, run_dir=str(tmp_path))
        try:
            hello = back.welcome()
            assert [(child.worker, child.pid) for child in hello.children] == [("w0", first)]
            report = back.expect(msg.ChildExited)
            assert (report.worker, report.signal) == ("w1", 9)
            assert back.launch("w1", 2, 1).pid != second
            assert letter(first) == "S"
            for worker, incarnation in (("w0", 1), ("w1", 2)):
                back.say(msg.Terminate(worker=worker, incarnation=incarnation, signal=9))
            back.finish(1, "failed", "because")
            status, _, err = ended(agent)
        finally:
            back.close()
    assert status == 1
    assert "is away" in err
    assert "is back (term 2)" in err
    assert err.endswith("error: because\n")


def test_a_frozen_agent_registers_again_when_it_is_continued(master: ScriptedMaster, tmp_path: Path) -> None:
    with godmw("worker", script(tmp_path, "import time; time.sleep(300)"), env=environment(master)) as agent:
        master.welcome()
        pid = master.launch("w0").pid
        freeze(agent.pid)
        began = time.monotonic()
        wait_until(
            lambda: time.monotonic() - began > 2.5, 3.0
        )  # longer than its lease: the time is what is tested
        os.kill(agent.pid, signal.SIGCONT)
        assert [child.pid for child in master.expect(msg.AgentHello).children] == [pid]


@pytest.mark.parametrize(
    ("host", "seen"),
    [("127.0.0.1", "connection refused"), ("no-such-host.invalid", "cannot be resolved")],
)
def test_no_master(tmp_path: Path, host: str, seen: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    env = {"GODMW_JOIN": f"godmw://{host}:{port}/{TOKEN}"}
    with godmw("worker", "--connect-timeout", "0.5", script(tmp_path, "pass"), env=env) as agent:
        status, out, err = ended(agent)
    assert status == 69
    assert out == ""
    first, hint = err.splitlines()
    assert first.startswith(f"error: no master at {host}:{port} for ")
    assert seen in first
    assert "godmw master" in hint


def test_something_else_listens_there(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        env = {"GODMW_JOIN": f"godmw://127.0.0.1:{other.getsockname()[1]}/{TOKEN}"}
        with godmw("worker", "--connect-timeout", "0.5", script(tmp_path, "pass"), env=env) as agent:
            status, _, err = ended(agent)
    assert status == 69
    assert "no godmw master" in err


def test_refused(master: ScriptedMaster, tmp_path: Path) -> None:
    with godmw("worker", "--json", script(tmp_path, "pass"), env=environment(master)) as agent:
        master.expect(msg.AgentHello)
        master.say(msg.Refused(code=77, reason="the token is not this job's", hint="paste it again"))
        status, out, _ = ended(agent)
    assert status == 77
    assert json.loads(out) == {"error": "the token is not this job's", "code": 77, "hint": "paste it again"}
