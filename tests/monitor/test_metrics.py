"""`metrics.jsonl`: the columns of the contract, one line a step."""

import json
import math
from pathlib import Path

import pytest

from godmw.monitor.metrics import COLUMNS, MetricsWriter, read_metrics

# as the paper lists them
CONTRACT = [
    *("t", "since_s", "step", "epoch", "generation", "world_size", "samples", "loss", "step_s", "data_s"),
    *("compute_s", "exposed_comm_s", "wait_s", "redone_samples", "logged"),
]


def test_columns_are_the_contracts_in_order(tmp_path: Path) -> None:
    metrics = MetricsWriter(tmp_path / "metrics.jsonl")
    assert metrics.step({"step": 0, "loss": 0.5, "t": 12.25, "logged": {"lr": 0.1}})
    metrics.close()
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert list(record) == CONTRACT == list(COLUMNS)
    assert (record["t"], record["step"], record["loss"], record["logged"]) == (12.25, 0, 0.5, {"lr": 0.1})
    assert record["epoch"] is None


def test_a_step_has_one_line_also_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsWriter(path)
    assert [metrics.step({"step": step}) for step in (0, 1, 1, 0, 2)] == [True, True, False, False, True]
    metrics.flush()
    metrics.close()
    path.write_bytes(path.read_bytes() + b'{"step":3,')
    again = MetricsWriter(path)
    assert again.last_step == 2
    assert [again.step({"step": step}) for step in (2, 3)] == [False, True]
    again.close()
    assert read_metrics(path)["step"] == [0, 1, 2, 3]


def test_what_is_not_finite_is_null(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsWriter(path)
    metrics.step({"step": 0, "loss": math.nan, "logged": {"norm": math.inf, "parts": [1.0, -math.inf]}})
    metrics.close()
    columns = read_metrics(path)
    assert columns["loss"] == [None]
    assert columns["logged"] == [{"norm": None, "parts": [1.0, None]}]


def test_a_column_there_is_not(tmp_path: Path) -> None:
    metrics = MetricsWriter(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match=r"no column of the metrics: \['los'\]"):
        metrics.step({"step": 0, "los": 0.5})
    metrics.close()


def test_columns_of_a_run_without_a_step(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "metrics.jsonl") == {name: [] for name in CONTRACT}
