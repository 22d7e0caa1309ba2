"""Runs the gateway's binary as a child process."""

import os
import pathlib
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import tls

OUT = pathlib.Path(__file__).resolve().parent / "out"
CONFIG = """
[node]
name = "yuzu_gw@interop"
cluster_id = "interop"

[[listener]]
name = "agent"
services = ["agent"]
address = "127.0.0.1:{agent}"
{listener}

[[listener]]
name = "management"
services = ["management"]
address = "127.0.0.1:{management_port}"
{listener}

[upstream]
endpoints = ["{scheme}://127.0.0.1:{upstream_port}"]
{upstream}

{management}

[heartbeat]
batch_interval_ms = 100

[observe]
metrics_address = "127.0.0.1:{metrics}"
health_address = "127.0.0.1:{health}"
log_level = "info,yuzu_gateway=debug"
"""


class Gateway:
    """A gateway process on free loopback ports, ready when the constructor returns."""

    def __init__(self, upstream_port, name):
        OUT.mkdir(exist_ok=True)
        self.log = OUT / f"gateway-{name}.log"
        self.log.unlink(missing_ok=True)
        # Another process may take a port between the choice and the bind.
        for _ in range(3):
            self._start(upstream_port, name)
            ready = False
            try:
                ready = self._wait_ready()
            finally:
                if not ready:
                    self.kill()
            if ready:
                return
        raise RuntimeError(f"the gateway did not become ready; see {self.log}")

    def _start(self, upstream_port, name):
        agent, management, metrics, self._health = free_ports(4)
        config = OUT / f"gateway-{name}.toml"
        config.write_text(CONFIG.format(
            agent=agent, management_port=management, upstream_port=upstream_port,
            metrics=metrics, health=self._health, **tls.gateway_config()))
        self.agent_address = f"127.0.0.1:{agent}"
        self.management_address = f"127.0.0.1:{management}"
        self._metrics = metrics
        environment = {k: v for k, v in os.environ.items() if not k.startswith("YUZU_GW_")}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [os.environ["GATEWAY_BIN"], "run", "--config", str(config)],
                stdout=log, stderr=subprocess.STDOUT, env=environment)

    def _wait_ready(self):
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if self.get(self._health, "/readyz")[0] == 200:
                    return True
            except OSError:
                pass
            time.sleep(0.05)
        return False

    @staticmethod
    def get(port, path):
        """Status and text of a plain HTTP GET on loopback."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, sample):
        """The value of one sample of /metrics, given as `name{labels}`."""
        for line in self.get(self._metrics, "/metrics")[1].splitlines():
            if line.startswith(sample + " "):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"/metrics has no sample {sample}")

    def terminate(self, timeout=40):
        """Asks for the planned stop and returns the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout)

    def kill(self):
        """Ends the process whatever its state."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def free_ports(count):
    """Distinct ports that nobody listened on a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
