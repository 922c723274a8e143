"""What a machine has to train with, as far as files tell."""

import mop_udf
from pg_mop import settings


def test_gpus_count_where_the_framework_that_is_installed_can_use_them(tmp_path, monkeypatch):
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    monkeypatch.setattr(mop_udf, "home", str(tmp_path), raising=False)
    devices = tmp_path / "dev"
    devices.mkdir()
    monkeypatch.setattr(settings, "DEVICES", str(devices))
    assert settings.gpus() == 0 and "has no GPU" in settings.no_gpu().message
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (devices / name).touch()
    assert settings.gpus() == 2
    (packages / "tensorflow_cpu-2.18.0.dist-info").mkdir()
    assert settings.gpus() == 0
    assert "for processors alone" in settings.no_gpu().message and "FRAMEWORK=cuda" in settings.no_gpu().hint
