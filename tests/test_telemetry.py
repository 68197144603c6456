"""Nothing that runs here reports to anybody: no packet leaves this machine."""

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.conftest import CHECKOUT, run_python, write_clip
from tests.orchestration.servers import wait_for

SWITCHES = ("DO_NOT_TRACK", "TELEMETRY", "HF_HUB_OFFLINE", "JOB_EXECUTION", "USAGE_STATS")
NAMESPACE = ("unshare", "--map-root-user", "--net")
ALL_ADDRESSES = ("link set lo up", "addr add 192.0.2.1/32 dev lo", "route add local default dev lo")
"""What `ip` is told so that the loopback device takes packets to every address."""
LATER_S = 2
"""What a server sends after its first answer is seen, too."""
pytestmark = pytest.mark.skipif(
    not shutil.which("ip")
    or subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode != 0,
    reason="needs network namespaces and iproute2",
)


@pytest.mark.slow
def test_no_verb_and_no_server_sends_a_packet(tmp_path: Path) -> None:
    """In a network namespace whose loopback device takes packets to every address, with the
    caller's switches removed."""
    write_clip(tmp_path / "clips" / "0.mp4", seed=0)
    environment = {
        key: value for key, value in os.environ.items() if not any(word in key for word in SWITCHES)
    }
    environment |= {
        "DAGSTER_HOME": str(tmp_path),
        "PYTHONPATH": str(CHECKOUT),
        "HOME": str(tmp_path),
    }
    (tmp_path / "dagster.yaml").touch()
    command = [*NAMESPACE, sys.executable, __file__, str(tmp_path)]
    done = subprocess.run(
        command, env=environment, cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


def watch(seen: set[str]) -> None:
    """Note the IPv4 destinations of packets that are not for this machine."""
    device = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
    device.bind(("lo", 0))

    def note() -> None:
        while True:
            packet = device.recv(65535)
            to = (
                socket.inet_ntoa(packet[30:34])
                if struct.unpack("!H", packet[12:14])[0] == 0x0800
                else "127."
            )
            seen.update([] if to.startswith(("127.", "192.0.2.")) else [to])

    threading.Thread(target=note, daemon=True).start()


def main(folder: Path) -> int:
    """Run verbs and servers; 0 if no packet was seen and each verb ended well."""
    seen: set[str] = set()
    for address in ALL_ADDRESSES:
        subprocess.run(["ip", *address.split()], check=True)
    watch(seen)
    clips = folder / "clips"
    collection = ["--data", str(folder / "collection")]
    verbs = [
        ["index", "add", str(clips)],
        ["search", str(clips / "0.mp4")],
        ["duplicates"],
        ["serve", "--port", "0"],
    ]
    calls = json.dumps([[*words, *collection] for words in verbs])
    failed = [
        answer
        for answer in json.loads(run_python("-m", "tests.commands.calls", input=calls))
        if answer[0]
    ]
    os.environ["HAPVR_CONFIG"] = str(folder / "collection" / "collection.yaml")
    servers = subprocess.Popen([sys.executable, "-m", "pipelines.ui"], start_new_session=True)
    wait_for("http://127.0.0.1:8000/health")
    time.sleep(LATER_S)
    os.killpg(servers.pid, signal.SIGTERM)
    servers.wait(60)
    print(failed, seen)  # noqa: T201
    return 1 if failed or seen else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
