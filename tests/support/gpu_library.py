"""NVIDIA's NVML as a small library of C with known answers (nvml.c), compiled by the test that asks for it."""

import os
import pathlib
import shutil
import subprocess

import pytest

SOURCE = pathlib.Path(__file__).with_name("nvml.c")


def compiled(folder: pathlib.Path, *defines: str) -> str:
    """The path of a new library in `folder`, whose devices are in their first state. `defines`: options of nvml.c
    ("-DWITHOUT_DRIVER"). Without gcc the test is not run, which it says."""
    if shutil.which("gcc") is None:
        pytest.skip("not run: gcc is not installed here")
    path = folder / f"libnvidia-ml-{len(os.listdir(folder))}.so"
    subprocess.run(["gcc", "-shared", "-fPIC", *defines, "-o", path, SOURCE], check=True)
    return str(path)
