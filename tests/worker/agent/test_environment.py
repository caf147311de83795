"""What a worker is given: its environment, its device, its share of the cores."""

from pathlib import Path

import pytest

from godmw.config import JoinAddress
from godmw.worker.agent import environment as env

JOIN = JoinAddress("10.0.0.1", 7000, "secret")


def given(
    base: dict[str, str] | None = None, *, slot: int = 0, slots: int = 4, cores: int = 8,
    devices: tuple[str, ...] = (), threads: int | None = None,
) -> dict[str, str]:  # fmt: skip
    place = env.Slot("w3", 2, slot, slots, 5, 9)
    return env.worker_environment(
        base or {}, place, agent="a-1", join=JOIN, run_dir="/runs/x", machine=env.Machine(cores, devices),
        threads=threads,
    )  # fmt: skip


def test_who_it_is_and_where_its_master_is() -> None:
    assert given({"PATH": "/bin"}, slot=1) == {
        "PATH": "/bin", "GODMW_JOIN": "godmw://10.0.0.1:7000/secret", "GODMW_WORKER": "w3",
        "GODMW_INCARNATION": "2", "GODMW_AGENT": "a-1", "GODMW_RUN_DIR": "/runs/x", "GODMW_SLOT": "1",
        "RANK": "5", "WORLD_SIZE": "9", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "7000", "OMP_NUM_THREADS": "2", "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("cores", "slots", "share"), [(8, 4, 2), (8, 3, 2), (2, 4, 1), (1, 1, 1), (64, 1, 64)]
)
def test_threads_are_the_share_of_the_cores(cores: int, slots: int, share: int) -> None:
    assert given(cores=cores, slots=slots)["OMP_NUM_THREADS"] == str(share)


def test_threads_that_were_set_stay_unless_the_option_says_otherwise() -> None:
    assert given({"OMP_NUM_THREADS": "7"})["OMP_NUM_THREADS"] == "7"
    told = given({"OMP_NUM_THREADS": "7"}, threads=3)
    assert (told["OMP_NUM_THREADS"], told["GODMW_THREADS"]) == ("3", "3")


def test_one_device_a_worker_and_the_index_of_what_it_sees() -> None:
    told = [given(slot=slot, devices=("GPU-a", "GPU-b")) for slot in range(3)]
    assert [item["CUDA_VISIBLE_DEVICES"] for item in told] == ["GPU-a", "GPU-b", "GPU-a"]
    assert {item["LOCAL_RANK"] for item in told} == {"0"}


def test_devices() -> None:
    listed = ["nvidia0", "nvidia1", "nvidia-uvm", "nvidiactl"]
    assert env.devices(None, listed) == ("0", "1")
    assert env.devices("2, GPU-x", listed) == ("2", "GPU-x")
    assert env.devices("", listed) == ()
    assert env.devices("-1", listed) == ()


def test_what_speaks_to_this_process_alone_is_not_handed_on() -> None:
    base = {
        "GODMW_JSON": "1",
        "GODMW_JOIN": "x",
        "GODMW_WORKER": "w0",
        "GODMW_ISA": "portable",
        "HOME": "/h",
    }
    assert env.foreign(base) == {"GODMW_ISA": "portable", "HOME": "/h"}


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "250000 100000\n"}, 3),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "100000 100000\n"}, 1),
        ("0::/a\n", {"a/cpu.max": "5000 100000\n"}, 1),
        ("0::/\n", {}, 1_000_000),
        (
            "4:cpu,cpuacct:/j\n0::/\n",
            {"cpu/j/cpu.cfs_quota_us": "400000\n", "cpu/j/cpu.cfs_period_us": "100000\n"},
            4,
        ),
        (
            "4:cpu:/gone\n",
            {"cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "100000\n"},
            2,
        ),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1_000_000),
    ],
)
def test_the_quota_of_the_control_group(tmp_path: Path, own: str, files: dict[str, str], cores: int) -> None:
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert env.quota(tmp_path / "fs", tmp_path / "own") == cores


def test_kills_for_want_of_memory_are_counted(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("pgfault 12\noom_kill 3\noom_kill_other 9\n")
    assert env.memory_kills(tmp_path / "vmstat") == 3
    assert env.memory_kills(tmp_path / "none") == 0
