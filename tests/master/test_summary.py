"""The summary, from a story whose numbers can be worked out by hand."""

from typing import Any

from godmw.master.summary import joins, recoveries, summarize

# steps of 0.1 s in generation 2 until 11.0; w1 dies at 11.02, the next commit is at 11.3 in generation 4;
# w3 is taken in by generation 5, whose first commit comes 0.25 s after the last of generation 4.
COMMITS = [10.8, 10.9, 11.0, 11.3, 11.4, 11.5, 11.75, 11.85]
GENERATIONS = [2, 2, 2, 4, 4, 4, 5, 5]
EVENTS: list[dict[str, Any]] = [
    {"t": 10.0, "kind": "join", "worker": "w0"},
    {"t": 10.1, "kind": "join", "worker": "w1"},
    {"t": 10.2, "kind": "join", "worker": "w2"},
    {"t": 10.5, "kind": "plan", "number": 2, "planned": False, "members": ["w0", "w1", "w2"],
     "joiners": ["w1", "w2"], "shards_redone": 0},
    {"t": 10.7, "kind": "formed", "number": 2, "members": ["w0", "w1", "w2"], "joiners": ["w1", "w2"]},
    {"t": 11.05, "kind": "verdict", "worker": "w1", "cause": "exited", "detected_s": 0.03, "reason": "9"},
    {"t": 11.06, "kind": "abort", "number": 3},
    {"t": 11.1, "kind": "plan", "number": 4, "planned": False, "members": ["w0", "w2"], "joiners": [],
     "shards_redone": 3},
    {"t": 11.12, "kind": "formed", "number": 4, "members": ["w0", "w2"], "joiners": []},
    {"t": 11.2, "kind": "join", "worker": "w3"},
    {"t": 11.4, "kind": "plan", "number": 5, "planned": True, "members": ["w0", "w2", "w3"],
     "joiners": ["w3"], "shards_redone": 0},
    {"t": 11.6, "kind": "formed", "number": 5, "members": ["w0", "w2", "w3"], "joiners": ["w3"]},
]  # fmt: skip


def test_a_recovery_is_measured_from_the_last_sign_of_life_to_the_next_commit() -> None:
    assert recoveries(EVENTS, COMMITS, GENERATIONS) == [
        {
            "worker": "w1", "cause": "exited", "detected_s": 0.03, "resumed_s": 0.25, "gap_s": 0.3,
            "shards_redone": 3,
        }
    ]  # fmt: skip


def test_a_death_nobody_recovered_from_has_no_numbers() -> None:
    story = EVENTS[:6]
    assert recoveries(story, COMMITS[:3], GENERATIONS[:3]) == [
        {
            "worker": "w1", "cause": "exited", "detected_s": 0.03, "resumed_s": None, "gap_s": None,
            "shards_redone": 0,
        }
    ]  # fmt: skip


def test_who_was_never_a_member_is_no_recovery() -> None:
    story = [*EVENTS, {"t": 12.0, "kind": "verdict", "worker": "w9", "cause": "exited", "detected_s": 0.1}]
    assert [row["worker"] for row in recoveries(story, COMMITS, GENERATIONS)] == ["w1"]


def test_a_join_is_told_with_what_it_cost_the_members() -> None:
    assert joins(EVENTS, COMMITS, GENERATIONS) == [{"worker": "w3", "join_s": 0.4, "stall_s": 0.15}]


def test_the_whole() -> None:
    metrics = [
        {"t": t, "generation": generation, "samples": 8, "epoch": index // 4, "loss": 1.0 / (index + 1),
         "logged": {"lr": index}}
        for index, (t, generation) in enumerate(zip(COMMITS, GENERATIONS, strict=True))
    ]  # fmt: skip
    whole = summarize(
        EVENTS, metrics, outcome="finished", reason="done", leader={"weights_sha256": "ab"}, wall_s=2.00049
    )
    assert {key: whole[key] for key in list(whole)[:12]} == {
        "outcome": "finished", "reason": "done", "steps": 8, "samples": 64, "epochs": 2, "generations": 3,
        "workers_seen": 4, "wall_s": 2.0, "loss_first": 1.0, "loss_last": 0.125, "logged": {"lr": 7},
        "weights_sha256": "ab",
    }  # fmt: skip
    assert [len(whole["recoveries"]), len(whole["joins"])] == [1, 1]


def test_a_job_that_did_nothing() -> None:
    whole = summarize([], [], outcome="failed", reason="no", leader={}, wall_s=0.0)
    assert (whole["steps"], whole["epochs"], whole["loss_first"], whole["loss_last"]) == (0, 0, None, None)
    assert (whole["recoveries"], whole["joins"]) == ([], [])
