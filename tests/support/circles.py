"""The three circles of tests. The directory of a test file decides its circle (the table in CONTRIBUTING.md)."""

import os
import pathlib

TESTS = pathlib.Path(__file__).resolve().parents[1]
# the directories of `make check`, those that `make test` adds, and those that only `make test-all` and CI's third run
CIRCLES = {
    "check": ["unit"],
    "test": ["client", "engines", "equivalence", "faults", "living", "security", "sql", "training", "upgrade"],
    "rest": ["thorough"],
}
# pytest's options for a circle: three files at a time on two cores, because most tests wait for half of their time
# (a worker that died is not replaced: with loadfile, pytest-xdist 3.8 would wait for the new one for ever)
SIDE_BY_SIDE = ["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder", "--max-worker-restart=0"]
# the files that take longest, about in this order: they begin first, because two workers would wait for one that ends last
LONG = """
sql/test_chains.py faults/test_faults.py faults/test_trainer_pool.py sql/test_train.py engines/test_engines.py
sql/test_mop_search.py security/test_shared_training.py faults/test_resume.py client/test_client.py
sql/test_training_checks.py sql/test_spaces_in_sql.py faults/test_soak_findings.py sql/test_fit_multiple.py
equivalence/test_frameworks.py sql/test_evaluate_predict.py security/test_attacks.py client/test_model.py
sql/test_families.py sql/test_tables.py sql/test_explain.py upgrade/test_upgrade.py living/test_dump.py
sql/test_metrics.py sql/test_contract.py sql/test_status_line.py client/test_command.py client/test_dashboard_browser.py
thorough/training/test_kinds_of_models.py thorough/faults/test_copies.py thorough/engines/test_engines.py
thorough/faults/test_joining.py thorough/kernels/test_kernels.py thorough/security/test_shared_training.py
thorough/browser/test_dashboard_page.py thorough/faults/test_matrix.py thorough/training/test_weights_of_layers.py
""".split()


def files(circle: str) -> list[pathlib.Path]:
    """The test files of a circle alone, sorted."""
    return sorted(path for room in CIRCLES[circle] for path in (TESTS / room).rglob("test_*.py"))


def third(number: int) -> list[pathlib.Path]:
    """One of three parts of the rest; the part is `number` modulo 3. Neighbours in a directory go to different parts."""
    return files("rest")[number % 3 :: 3]


def long_first(paths: list[pathlib.Path]) -> list[str]:
    """These files in the order in which they are dealt to the workers."""
    found = {path.relative_to(TESTS).as_posix(): str(path) for path in paths}
    return [found.pop(name) for name in LONG if name in found] + list(found.values())


def draws(quick: int, thorough: int) -> int:
    """How many random cases a test draws: `thorough` many in `make test-all` and in CI's third, else `quick`."""
    return thorough if "PG_MOP_THOROUGH" in os.environ else quick
