"""How the runner reports tests that never end: the settings of pytest.ini and tests/run, with
shorter limits."""

import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLANTED = """
import ctypes
import os
import time


def test_first():
    pass


def test_waits():
    time.sleep(600)


def test_after_waits():
    pass


def test_hangs_in_a_call():
    mutex = ctypes.create_string_buffer(64)
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
    ctypes.CDLL(None).pthread_mutex_lock(mutex)


def test_after_hang():
    pass


def test_crashes():
    os.abort()


def test_last():
    pass
"""

LOST = """
import types

from tests.methods import library


def test_lost():
    lib = types.SimpleNamespace(attnd_error=lambda: b"cuda: stream: it has gone")
    library.Engine.check(types.SimpleNamespace(lib=lib, device="cuda:0"), library.INTERNAL)
"""


def test_a_hang_or_a_crash_is_one_failed_test_with_a_name(tmp_path):
    """Symptom: one hang or crash hid the results of all other tests of its suite."""
    (tmp_path / "test_planted.py").write_text(PLANTED)
    report = tmp_path / "report.xml"
    workers = re.search(r"-n 2 --dist \w+", (ROOT / "tests/run").read_text())[0]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", ROOT / "pytest.ini", "--rootdir", tmp_path,
         "-p", "no:cacheprovider", "-o", "timeout=2", "-o", "faulthandler_timeout=4",
         *workers.split(), f"--junitxml={report}", tmp_path],
        env={name: x for name, x in os.environ.items() if not name.startswith("PYTEST_")},
        capture_output=True, text=True, timeout=100)
    assert report.exists(), done.stdout + done.stderr
    cases = list(xml.etree.ElementTree.parse(report).iter("testcase"))
    failed = [case.get("name") for case in cases
              if case.find("failure") is not None or case.find("error") is not None]
    names = re.findall(r"def (test_\w+)", PLANTED)
    assert sorted(case.get("name") for case in cases) == sorted(names), done.stdout
    assert sorted(failed) == ["test_crashes", "test_hangs_in_a_call", "test_waits"], done.stdout
    # The stack of the hanging test is printed.
    assert "in test_hangs_in_a_call" in done.stdout + done.stderr


def test_a_process_that_ends_with_its_device_says_why(tmp_path):
    """Symptom: a worker that had lost its device ended without a word."""
    (tmp_path / "test_planted.py").write_text(LOST)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", ROOT / "pytest.ini", "--rootdir", tmp_path,
         "-p", "no:cacheprovider", "-p", "tests.methods.conftest", "-n", "1", tmp_path],
        env={name: x for name, x in os.environ.items() if not name.startswith("PYTEST_")}
        | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=100)
    assert "crashed while running" in done.stdout, done.stdout
    assert "test_lost (call): the process ends: cuda: stream: it has gone" in done.stderr, done.stderr
