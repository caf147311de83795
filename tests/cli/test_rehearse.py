"""`godmw rehearse`: what the checklist makes of what was seen, and the whole of it on a script of one's
own.
"""

import json
import sys
import time
from pathlib import Path

import pytest

from godmw.client.pace import Pace
from godmw.data.audit import AuditReport
from godmw.demo import checklist, plain, rehearsal
from godmw.demo.checklist import Check
from godmw.demo.trial import EVENTS, FEWEST, Trial
from tests.fakes.command import godmw as command
from tests.integration.processes import ended, godmw

SCRIPT = """
import sys, torch, torch.nn.functional as F, godmw
torch.manual_seed(7)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
data = torch.utils.data.TensorDataset(torch.randn(200, 8), torch.randint(0, 3, (200,)))
job = godmw.join(model, optimizer, scheduler)
for step in job.steps(data, batch_size=20, steps=int(sys.argv[1])):
    for x, y in step:
        step.backward(F.cross_entropy(model(x), y))
    optimizer.step()
    scheduler.step()
    if "together" in sys.argv and job.is_leader and step.index == 6:
        job.allreduce(1.0)
print("stopped:", job.stopped)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


# ---- the checklist ----


def test_lines_have_the_verdict_first_and_advice_where_it_is_needed() -> None:
    checks = [
        Check("audit", True, "missing 0", "never shown"),
        Check("step time", False, "slow", "buy more"),
    ]
    assert checklist.lines(checks) == [
        "pass  audit      missing 0",
        "FAIL  step time  slow",
        "                 -> buy more",
    ]
    assert Check("audit", True, "x", "not shown").as_dict() == {
        "name": "audit",
        "passed": True,
        "found": "x",
        "advice": "",
    }


def test_a_job_that_failed_is_not_finished_and_a_short_one_says_so() -> None:
    assert checklist.finished(40, 40, None) == Check("finished", True, "40 steps")
    assert "fewer than 40" in checklist.finished(24, 40, None).found
    failed = checklist.finished(7, 40, "w1: its script raised")
    assert not failed.passed
    assert failed.found == "7 steps, then: w1: its script raised"


def test_digests_are_equal_when_there_is_one_and_the_job_ended() -> None:
    same = [
        {"worker": "w0", "digest": "aa"},
        {"worker": "w1", "digest": "aa"},
        {"worker": "w2", "digest": ""},
    ]
    assert checklist.digests(same, None).found == "one digest on 2 workers"
    assert checklist.digests(same, None).passed
    assert not checklist.digests(same, "it failed").passed
    assert not checklist.digests([], None).passed
    apart = checklist.digests([*same, {"worker": "w3", "digest": "bb"}], None)
    assert (apart.passed, apart.found) == (False, "2 different digests on 3 workers")


def test_the_audit_is_as_clean_as_the_ledger() -> None:
    assert not checklist.audited(None).passed
    report = AuditReport(samples=80)
    assert checklist.audited(report).found == "80 samples, missing 0, repeated 0"
    assert checklist.audited(report).passed is report.clean is True
    assert not checklist.audited(AuditReport(samples=80, repeated=1)).passed


def test_a_survivor_has_one_pid_whatever_happened_to_the_others() -> None:
    def status(**pids: int) -> dict[str, object]:
        workers = [{"id": name, "rank": rank, "pid": pid} for rank, (name, pid) in enumerate(pids.items())]
        return {"workers": [*workers, {"id": "w9", "rank": None, "pid": pids["w0"]}]}

    seen = [status(w0=10, w1=11, w2=12), status(w0=10, w1=21, w2=12), status(w0=10, w1=21, w2=12, w3=13)]
    assert checklist.survivors(seen, frozenset({"w1"})).found == "w0, w2, w3 kept process and memory"
    moved = checklist.survivors(seen, frozenset())
    assert (moved.passed, moved.found) == (False, "w1 came back as another process")
    assert not checklist.survivors([], frozenset()).passed


def test_forgotten_state_is_found_in_the_engine_s_own_words() -> None:
    assert checklist.registered("nothing of the kind").passed
    said = (
        "train.py:9: UserWarning: not given to godmw.join, so not kept equal on the workers: "
        "GradScaler, StepLR; give everything that has a state_dict: job = godmw.join(model, optimizer)\n"
    )
    found = checklist.registered(said + said)
    assert (found.passed, found.found) == (False, "not given to godmw.join: GradScaler, StepLR")


def test_collectives_out_of_order_are_found_in_the_engine_s_own_words() -> None:
    assert checklist.ordered("fine", 12).passed
    assert not checklist.ordered("", 0).passed
    said = (
        '  File "train.py", line 3\nerror: the workers do not stand at the same operation: w0 is elsewhere\n'
        "hint: every worker must run the same script with the same arguments in the same order\n"
    )
    found = checklist.ordered(said, 12)
    assert not found.passed
    assert found.found == "the workers do not stand at the same operation: w0 is elsewhere"


@pytest.mark.parametrize(
    ("alone_s", "ours_s", "passed"),
    [(0.1, 0.19, True), (0.1, 0.21, False), (0.002, 0.04, True), (0.002, 0.06, False)],
)
def test_a_step_may_take_twice_as_long_or_a_little_longer(
    alone_s: float, ours_s: float, passed: bool
) -> None:
    warming = [9.0, 9.0]
    found = checklist.step_time([*warming, *[alone_s] * 5], [*warming, *[ours_s] * 5], 3)
    assert found.passed is passed
    assert f"ratio {ours_s / alone_s:.2f}" in found.found
    assert not checklist.step_time([0.1] * 2, [0.1] * 9, 3).passed  # too few to tell


# ---- how many events there are steps for ----


@pytest.mark.parametrize(("limit", "free", "events"), [(40, 10, 5), (FEWEST, 4, 5), (18, 4, 3), (6, 4, 0)])
def test_short_scripts_have_as_many_events_as_fit(
    tmp_path: Path, limit: int, free: int, events: int
) -> None:
    job = Trial(["x.py"], tmp_path, {}, limit, 0.0, lambda _: None)
    assert (job.free, job.fitting) == (free, EVENTS[:events])


# ---- the pace ----


def test_a_step_waits_for_its_turn_and_the_last_one_is_known(tmp_path: Path) -> None:
    pace = Pace(tmp_path / "pace")
    assert pace.over(0)  # nobody keeps it: the job ends
    pace.set(2, 3)
    assert not pace.wait(0)
    assert not pace.wait(1)
    assert not pace.over(2)
    pace.set(3, 3)
    assert pace.wait(2)
    assert pace.over(3)
    pace.set(0, 0)
    assert pace.wait(7)  # an end that was brought forward: the step that was waited for is the last


def test_a_pace_that_nobody_keeps_holds_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pace = Pace(tmp_path / "pace")
    pace.set(0, 9)
    later_s = time.time() + 60
    monkeypatch.setattr("godmw.client.pace.time.time", lambda: later_s)
    assert pace.read() == (9, 9)


# ---- plain Python ----


def test_the_script_alone_is_ended_after_its_steps(tmp_path: Path, script: Path) -> None:
    alone = plain.run([str(script), "1000"], tmp_path / "plain", {"PATH": "/usr/bin:/bin"}, 5, 40.0)
    assert (alone.code, len(alone.steps_s), alone.cut) == (0, 5, False)
    assert "stopped: the rehearsal is over" in alone.output


def test_a_script_that_raises_is_shown_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("print('so far')\nraise ValueError('no such thing')\n")
    code, out, err = command(capsys, "rehearse", "--run-dir", tmp_path / "kept", broken)
    assert code == 1
    assert err.count("Traceback") == 1
    assert err.rstrip().endswith("ValueError: no such thing")
    assert "FAIL  plain Python    exit code 1 after 0 steps" in out
    assert out.count("did not happen") == len(EVENTS)


def test_a_script_without_godmw_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    idle = tmp_path / "idle.py"
    idle.write_text("import sys; assert sys.argv[1:] == ['--json']")
    code, out, _ = command(capsys, "rehearse", "--json", idle, "--json")
    told = json.loads(out)
    assert (code, told["ok"], told["steps"]) == (1, False, 0)
    assert told["checks"][0]["found"] == "it did no step of godmw"


def test_a_script_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = tmp_path / "hanging.py"
    hanging.write_text("import time; time.sleep(600)")
    monkeypatch.setattr(plain, "PATIENCE_S", 0.2)
    monkeypatch.setattr(plain, "END_S", 0.3)
    report = rehearsal.rehearse([str(hanging)], tmp_path / "kept", {})
    assert not report.ok
    assert report.checks[0].advice == "rehearse with less data"
    assert report.wall_s < 10


def test_no_such_script_is_said_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = command(capsys, "rehearse", "nowhere.py")
    assert code == 64
    assert err.startswith("error: no such script: nowhere.py")


# ---- the whole of it ----


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_good_script_passes_everything_but_what_the_machine_decides(tmp_path: Path, script: Path) -> None:
    with godmw("rehearse", "--json", str(script), "1000") as process:
        code, out, err = ended(process, within_s=200)
    told = json.loads(out)
    verdicts = {check["name"]: check["passed"] for check in told["checks"]}
    assert list(verdicts)[1:6] == list(EVENTS)
    timed = verdicts.pop("step time")
    assert all(verdicts.values()), (told, err)
    assert (code == 0) is timed is told["ok"]
    assert told["steps"] == 40
    assert told["wall_s"] < 180
    assert not _left(script)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_an_operation_of_the_leader_alone_is_named(tmp_path: Path, script: Path) -> None:
    with godmw("rehearse", "--json", str(script), "1000", "together") as process:
        code, out, _ = ended(process, within_s=200)
    told = json.loads(out)
    checks = {check["name"]: check for check in told["checks"]}
    assert code == 1
    assert checks["plain Python"]["passed"]
    assert not checks["collectives"]["passed"]
    assert "do not stand at the same operation" in checks["collectives"]["found"]
    assert not checks["finished"]["passed"]
    assert not _left(script)


def _left(script: Path) -> list[str]:
    """Processes that still have the script on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(script) in line and str(sys.argv[0]) not in line:
            found.append(line)
    return found
