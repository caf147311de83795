"""A master's life in one process: what is refused, taken up, and left behind."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from godmw.client.rundir import RunDir
from godmw.config import JobSettings, JoinAddress
from godmw.errors import JobFailed, UsageError
from godmw.master.main import run_master
from godmw.membership import actions as act
from godmw.membership import records as rec
from tests.fakes.machine import ScriptedMachine


class ShortLived(ScriptedMachine):
    """Is over as soon as it has started."""

    def __init__(self, settings: JobSettings, restored: Sequence[rec.JournalRecord], *more: Any) -> None:
        super().__init__()
        self.settings, self.restored = settings, restored

    def start(self, now_s: float) -> list[Any]:
        finish = rec.FinishMade("finished", 0, "all is done", '{"weights_sha256": "abc"}')
        term = rec.TermBegan(
            self.settings.term, self.settings.address, self.settings.job, self.settings.token
        )
        return [act.Record(record) for record in (term, finish, rec.JobOver())] + [
            act.EndJob("finished", 0, "all is done")
        ]


def run(path: Path, machine: Any = ShortLived) -> tuple[int, JoinAddress]:
    told: list[JoinAddress] = []
    code = run_master(JobSettings(), path, "127.0.0.1:0", ready=told.append, factory=machine)
    return code, told[0]


def test_a_finished_job_leaves_its_summary_and_is_not_taken_up_again(tmp_path: Path) -> None:
    code, join = run(tmp_path)
    assert code == 0
    files = RunDir(tmp_path)
    assert files.address() == join
    summary = files.read_summary()
    assert summary is not None
    assert (summary["outcome"], summary["weights_sha256"]) == ("finished", "abc")
    assert files.final_status() == ScriptedMachine().view()
    with pytest.raises(UsageError, match=r"is finished$"):
        run(tmp_path)


def test_a_master_that_died_before_its_last_word_is_completed(tmp_path: Path) -> None:
    run(tmp_path)
    files = RunDir(tmp_path)
    (files.summary.unlink(), files.status.unlink())
    with pytest.raises(UsageError, match="is finished"):
        run(tmp_path)
    summary, status = files.read_summary(), files.final_status()
    assert summary is not None
    assert summary["weights_sha256"] == "abc"
    assert status == {"phase": "FINISHED", "step": 0, "workers": []}


def test_an_end_that_not_all_have_confirmed_is_taken_up(tmp_path: Path) -> None:
    machines: list[ShortLived] = []

    class Interrupted(ShortLived):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            machines.append(self)

        def start(self, now_s: float) -> list[Any]:
            if len(machines) > 1:
                return super().start(now_s)
            raise KeyError("the first master breaks")

    with pytest.raises(KeyError, match="the first master breaks"):
        run(tmp_path, Interrupted)
    assert RunDir(tmp_path).address() is None, "it broke before anybody was told"
    code, join = run(tmp_path, Interrupted)
    assert code == 0
    assert machines[1].settings.term == 1, "a term that was not journalled was not begun"
    assert machines[1].settings.token == join.token


def test_a_job_that_failed_is_not_taken_up_without_state(tmp_path: Path) -> None:
    class Failing(ShortLived):
        def start(self, now_s: float) -> list[Any]:
            finish = rec.FinishMade("failed", 1, "w0: its script raised", "")
            return [act.Record(finish), act.Record(rec.JobOver()), act.EndJob("failed", 1, finish.reason)]

    assert run(tmp_path, Failing)[0] == 1
    with pytest.raises(JobFailed, match=r"is over \(failed: w0: its script raised\), no state is on disk"):
        run(tmp_path)


def test_everything_is_given_back(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(3):
        run(tmp_path / str(number))
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1
