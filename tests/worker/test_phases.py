"""What the engine says that it is doing, for the master to judge by."""

from tests.fakes.company import Company
from tests.worker.test_company import train


def test_the_first_step_of_a_process_is_said_to_be_one() -> None:
    company = Company(["a"])
    company.run(lambda join, worker: train(join, worker))
    assert {"first step", "compute"} <= company.controls["a"].phases
