"""What trainers measure of processors and GPUs. The library that is asked about GPUs is nvml.c, compiled here."""

import os

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from mop_udf.pool import nvml
from mop_udf.training import evaluation, work_meter
from mop_udf.training.work_meter import WorkMeter
from support import gpu_library
from support.cluster import eventually

GIB = 1 << 30
LONG = 3600.0  # seconds between readings: the thread never reads


@pytest.fixture
def compiled(tmp_path):
    """A function that compiles the library: its path."""
    return lambda *defines: gpu_library.compiled(tmp_path, *defines)


def test_devices_are_found_by_number_and_by_uuid(compiled):
    library = nvml.Nvml(compiled())
    assert [library.device("0").utilization() for _ in range(4)] == [0.4, 0.6, 0.8, 0.4]
    assert library.device("GPU-zero").used_bytes() == GIB and library.device("GPU-zero").used_bytes() == 2 * GIB
    assert library.device("MIG-part").used_bytes() == library.device("2").used_bytes() == 5 * GIB


def test_errors_name_the_function_the_text_and_the_code(compiled):
    library = nvml.Nvml(compiled())
    with pytest.raises(nvml.NvmlError, match=r"^nvmlDeviceGetHandleByIndex_v2: Invalid Argument \(code 2\)$"):
        library.device("3")
    with pytest.raises(nvml.NvmlError, match=r"^nvmlDeviceGetHandleByUUID: Not Found \(code 6\)$"):
        library.device("GPU-one")
    with pytest.raises(nvml.NvmlError, match=r"^nvmlDeviceGetUtilizationRates: unknown error \(code 3\)$") as caught:
        library.device("2").utilization()
    assert caught.value.code == 3
    with pytest.raises(nvml.NvmlError, match=r"^nvmlInit_v2: Driver Not Loaded \(code 9\)$"):
        nvml.Nvml(compiled("-DWITHOUT_DRIVER"))


def test_devices_of_the_variable_are_all_there_or_none(compiled, tmp_path):
    path = compiled()
    for visible, count in {"0": 1, "0,1": 2, " 1 , GPU-zero": 2, "MIG-part": 1}.items():
        assert len(nvml.devices(visible, path)) == count, visible
    for visible in ("", "-1", "0,-1", "3", "0,7", "GPU-one", "zero", "0,", "4294967296"):
        assert nvml.devices(visible, path) == [], visible
    (tmp_path / "text.so").write_text("no library")
    for none in (str(tmp_path / "missing.so"), str(tmp_path / "text.so"), compiled("-DWITHOUT_DRIVER"), "libm.so.6"):
        assert nvml.devices("0", none) == [], none


def test_a_reading_is_the_mean_of_the_devices_and_the_fullest_of_them(compiled):
    meter = WorkMeter(nvml.devices("0,1", compiled()), LONG)
    assert meter.read() == (pytest.approx(0.3), GIB)
    assert meter.read()[0] == pytest.approx(0.4)  # the memory of device 1 is gone with its second reading
    assert meter.read() == (pytest.approx(0.8), 3 * GIB), "a lost device is left out"


def test_a_lost_device_has_no_utilization_and_no_memory(compiled):
    meter = WorkMeter(nvml.devices("1", compiled()), LONG)
    readings = [meter.read() for _ in range(4)]
    assert readings == [(0.2, GIB), (0.2, None), (None, None), (None, None)]
    assert meter.report(readings) == {"gpu_utilization": pytest.approx(0.2), "gpu_memory_bytes": GIB}
    assert meter.report(readings[2:]) == {"gpu_utilization": None, "gpu_memory_bytes": None}


def test_a_part_of_a_gpu_tells_its_memory_alone(compiled):
    meter = WorkMeter(nvml.devices("MIG-part", compiled()), LONG)
    assert meter.report([]) == {"gpu_utilization": None, "gpu_memory_bytes": 5 * GIB}


def test_a_unit_has_the_mean_of_its_readings_and_the_most_memory(compiled):
    meter = WorkMeter(nvml.devices("0", compiled()), LONG)
    assert meter.report([(0.5, 2 * GIB), (1.0, GIB), (None, None)]) == {
        "gpu_utilization": 0.75,
        "gpu_memory_bytes": 2 * GIB,
    }
    assert meter.report([]) == {"gpu_utilization": 0.4, "gpu_memory_bytes": GIB}, "read when the unit ends"


class Watched(threading.Event):
    """An event that tells whether a thread waits for it: `idle`."""

    idle = False

    def wait(self, timeout=None):
        self.idle = not self.is_set()
        try:
            return super().wait(timeout)
        finally:
            self.idle = False


def test_a_thread_reads_while_a_unit_trains_and_not_between_units(compiled, monkeypatch):
    monkeypatch.setattr(threading, "Event", Watched)
    meter, found = WorkMeter(nvml.devices("0", compiled()), 0.001), []
    monkeypatch.undo()

    def has_read():
        found.extend(meter.take())
        return len(found) >= 3

    for _ in range(2):
        found.clear()
        with meter:
            assert eventually(has_read, 60)
        assert {share for share, _ in found} <= {0.4, 0.6, 0.8}
        assert {size for _, size in found} <= {GIB, 2 * GIB, 3 * GIB}
        assert eventually(lambda: meter._wanted.idle, 60), "the thread goes on between units"
        assert len(meter.take()) <= 1, "the reading that was under way"


def test_without_a_device_nothing_runs_and_nothing_is_told(compiled):
    before = threading.active_count()
    meter = WorkMeter(nvml.devices("-1", compiled()))
    with meter:
        assert meter.take() == []
    assert meter.report([]) == {} and threading.active_count() == before


def test_a_process_whose_framework_has_no_gpu_looks_for_no_library(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    asked = []
    monkeypatch.setattr(nvml, "devices", lambda *names: asked.append(names) or [])
    work_meter.meter.cache_clear()
    assert work_meter.meter() is work_meter.meter() and asked == []
    work_meter.meter.cache_clear()


def test_processor_seconds_count_threads_and_ended_children():
    def busy(seconds):
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass

    before = work_meter.processor_seconds()
    thread = threading.Thread(target=busy, args=[0.2])
    thread.start()
    thread.join()
    own = work_meter.processor_seconds()
    assert own - before >= 0.15
    loop = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", loop], check=True)
    assert work_meter.processor_seconds() - own >= 0.2


class Doubles:
    """What Evaluation asks of a CompiledModel."""

    cut = None

    def __init__(self):
        self.weights = self.forward = self
        self.rows = 0

    def put(self, weights):
        pass

    def evaluate(self, piece, inputs):
        return np.array([2.0])

    def score(self, sums):
        return {"rows": int(sums[0]), "loss": sums[1]}


def test_evaluations_tell_the_work_of_the_gpu(compiled, monkeypatch):
    meter = WorkMeter(nvml.devices("0", compiled()), LONG)
    monkeypatch.setattr(work_meter, "meter", lambda: meter)
    evaluated = evaluation.Evaluation(Doubles(), [], 1)
    evaluated.add([np.zeros(3)])
    report = evaluated.report()
    assert report["rows"] == 3 and report["cpu_seconds"] >= 0
    assert report["gpu_utilization"] == 0.4 and report["gpu_memory_bytes"] == GIB
