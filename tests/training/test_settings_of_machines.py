"""What a machine has to train with, as far as files tell."""

import pathlib
import sys

import pytest

import mop_udf
from mop_udf.pool import process
from pg_mop.api.tables.trained import FAMILIES, families_of
from pg_mop.backend import settings
from pg_mop.backend.errors import MopError
from support.workload import dense, needs_jax, needs_torch


def test_boosting_is_a_family_where_its_package_is_installed(tmp_path, monkeypatch):
    packages = pathlib.Path(mop_udf.packages(tmp_path))
    monkeypatch.setattr(mop_udf, "home", str(tmp_path))
    assert families_of(None) == families_of("nets") == ("nets",)
    for names in ("nets, boosting", "boosting"):
        with pytest.raises(MopError) as caught:
            families_of(names)
        assert "pip install lightgbm" in caught.value.hint
    (packages / "lightgbm").mkdir(parents=True)
    assert families_of(None) == families_of("boosting, Nets") == ("nets", "boosting")
    (packages / "scipy").mkdir()
    assert families_of(None) == FAMILIES and families_of("mlp, linear") == ("linear", "mlp")


def test_gpus_count_where_the_framework_that_is_installed_can_use_them(tmp_path, monkeypatch):
    packages = pathlib.Path(mop_udf.packages(tmp_path))
    packages.mkdir(parents=True)
    monkeypatch.setattr(mop_udf, "home", str(tmp_path))
    devices = tmp_path / "dev"
    devices.mkdir()
    monkeypatch.setattr(settings, "DEVICES", str(devices))
    assert settings.gpus() == 0 and "has no GPU" in settings.no_gpu().message
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (devices / name).touch()
    assert settings.gpus() == 2
    (packages / "tensorflow_cpu-2.18.0.dist-info").mkdir()
    assert settings.gpus() == 0
    (packages / "tensorflow-2.18.0.dist-info").mkdir()
    assert settings.gpus() == 2  # somebody has put it there besides
    (packages / "tensorflow-2.18.0.dist-info").rmdir()
    assert "is for CPUs only" in settings.no_gpu().message and "FRAMEWORK=cuda" in settings.no_gpu().hint


@pytest.mark.parametrize(
    "backend,name,install,package",
    [
        ("tensorflow", "TensorFlow", "FRAMEWORK=tensorflow", "tensorflow-cpu"),
        ("jax", "JAX", "WITH=jax", "jax"),
        ("torch", "PyTorch", "WITH=torch", "torch"),
    ],
)
def test_a_framework_that_is_not_installed_is_an_error_with_what_to_do(
    tmp_path, monkeypatch, backend, name, install, package
):
    packages = pathlib.Path(mop_udf.packages(tmp_path))
    monkeypatch.setattr(mop_udf, "home", str(tmp_path))
    with pytest.raises(MopError, match=f"{name} is not installed on this server") as refused:
        settings.check_installed(backend)
    assert f"make install {install}" in refused.value.hint
    assert f"{tmp_path}/bin/pip install {package}" in refused.value.hint
    assert "SET pg_mop.keras_backend" not in refused.value.hint, "no framework is installed"
    other = "torch" if backend == "jax" else "jax"
    (packages / other).mkdir(parents=True)
    with pytest.raises(MopError) as refused:
        settings.check_installed(backend)
    assert f"SET pg_mop.keras_backend = '{other}'" in refused.value.hint
    (packages / backend).mkdir()
    settings.check_installed(backend)


def test_a_framework_counts_where_a_pth_file_names_its_directory(tmp_path, monkeypatch):
    packages, elsewhere = pathlib.Path(mop_udf.packages(tmp_path)), tmp_path / "elsewhere"
    monkeypatch.setattr(mop_udf, "home", str(tmp_path))
    monkeypatch.setattr(settings, "DEVICES", str(tmp_path / "dev"))
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    for folder in (packages, elsewhere / "jax", elsewhere / "jax_cuda13_plugin-0.11.2.dist-info"):
        folder.mkdir(parents=True)
    assert settings.gpus("jax") == 0
    (packages / "frameworks.pth").write_text(f"# frameworks\nimport sys\n{tmp_path / 'missing'}\n{elsewhere}\n")
    assert mop_udf.folders(tmp_path) == [str(packages), str(elsewhere)]
    settings.check_installed("jax")
    assert settings.gpus("jax") == 1


@pytest.mark.parametrize(
    "kernel,backend", [("auto", "torch"), ("xla", "tensorflow"), ("vmap", "jax"), ("loop", "jax"), ("xla", "torch")]
)
def test_a_kernel_that_does_without_is_no_error(kernel, backend):
    settings.check_kernel({"kernel": kernel, "keras_backend": backend})


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_a_kernel_of_another_framework_is_an_error_with_what_to_do(backend):
    with pytest.raises(MopError, match=f'pg_mop.kernel is "vmap", but pg_mop.keras_backend is "{backend}"') as refused:
        settings.check_kernel({"kernel": "vmap", "keras_backend": backend})
    assert "SET pg_mop.keras_backend = 'jax'" in refused.value.hint and "Only JAX" in refused.value.detail


@pytest.mark.parametrize(
    "backend,message",
    [
        ("tensorflow", "TensorFlow .* finds no GPU 0 .*FRAMEWORK=cuda"),
        pytest.param("jax", "JAX .* finds no GPU 0", marks=needs_jax),
        pytest.param("torch", "PyTorch .* finds no GPU 0", marks=needs_torch),
    ],
)
def test_a_trainer_that_was_started_for_a_gpu_does_not_train_without(backend, message):
    if settings.gpus():
        pytest.skip("not run: this machine has GPUs")
    options = {"threads": 1, "gpu": 0, "keras_backend": backend, "cache_mb": 1, "idle_ms": 60_000}
    trainer = process.Trainer(sys.prefix, options, lambda: None)
    try:
        trainer.send({"op": "model", "architecture": dense()}, b"")
        with pytest.raises(process.TrainerError, match=message):
            trainer.receive()
    finally:
        trainer.kill()


@pytest.mark.parametrize("text,seconds", [("", 0.5), ("0", 0.0), ("0.25", 0.25), ("60", 60.0)])
def test_seconds_of_a_chain_are_a_number(text, seconds):
    assert settings.parsed({"chain_seconds": text})["chain_seconds"] == seconds


@pytest.mark.parametrize("text", ["-1", "61", "nan", "inf", "500ms", "half"])
def test_other_seconds_of_a_chain_are_an_error_that_names_the_range(text):
    with pytest.raises(MopError) as error:
        settings.parsed({"chain_seconds": text})
    assert error.value.message == f'invalid value for setting "pg_mop.chain_seconds": "{text}"'
    assert error.value.hint == "It takes a number of seconds from 0 to 60."
