"""The real server under the real Prometheus, with the rules and console pages of deploy/."""

import json
import pathlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "e2e"))

from server_process import Server  # noqa: E402

DEPLOY = REPOSITORY / "deploy"
START_SECONDS = 30
# So small that the load fills them at times: the panels show refusals, too.
SERVER_FLAGS = ("--budget-bytes", "64MiB", "--max-queue", "6", "--max-batch", "4")
CONFIG = """\
global:
  scrape_interval: 1s
  evaluation_interval: 1s
rule_files: ["{rules}/*.yml"]
scrape_configs:
  - job_name: attnd
    static_configs: [{{targets: ["{target}"]}}]
"""


class Prometheus:
    """A Prometheus that scrapes `target` every second; its data lives in `folder`."""

    def __init__(self, folder, target):
        binary = shutil.which("prometheus")
        assert binary, "prometheus is missing: deploy/install-deps --test installs it"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "libraries").mkdir()
        (folder / "prometheus.yml").write_text(
            CONFIG.format(rules=DEPLOY / "prometheus" / "rules", target=target)
        )
        self.log_path = folder / "prometheus.log"
        self.url = f"http://127.0.0.1:{_free_port()}"
        command = [
            binary,
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address={self.url.removeprefix('http://')}",
            f"--web.console.templates={DEPLOY}/prometheus/consoles",
            # Prometheus 3 ships no console libraries: the page must work without them.
            f"--web.console.libraries={folder}/libraries",
        ]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self._wait_until_ready()

    def _wait_until_ready(self):
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            try:
                with urllib.request.urlopen(self.url + "/-/ready", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        self.stop()
        raise AssertionError(f"prometheus did not start:\n{self.log_path.read_text()[-4000:]}")

    def get(self, path):
        """HTTP status and body."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=20) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def api(self, path, **parameters):
        """`data` of the HTTP API's answer, which must be a success."""
        query = urllib.parse.urlencode(parameters, doseq=True)
        _, body = self.get(f"/api/v1/{path}?{query}")
        answer = json.loads(body)
        assert answer["status"] == "success", f"{parameters}: {answer.get('error')}"
        return answer["data"]

    def query(self, expression, **parameters):
        """[(labels, value)] of an instant query."""
        data = self.api("query", query=expression, **parameters)
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        return [(sample["metric"], float(sample["value"][1])) for sample in data["result"]]

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Stack:
    """Server and Prometheus, as a context."""

    def __init__(self, folder):
        self._folder = folder

    def __enter__(self):
        self.server = Server(self._folder, *SERVER_FLAGS)
        try:
            target = self.server.http.removeprefix("http://")
            self.prometheus = Prometheus(self._folder / "prometheus", target)
        except BaseException:
            self.server.kill()
            raise
        return self

    def __exit__(self, *exception):
        self.prometheus.stop()
        self.server.kill()


def _free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
