"""`make setup`, repeated in an environment that is there."""

import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent


def test_make_setup_adds_the_networks_for_copies_where_they_were_left_out(tmp_path: Path) -> None:
    """Messages of a set-up without them say that it does."""
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / ".installed").touch()
    command = ["make", "--dry-run", "--assume-old", f"{venv}/.installed", f"VENV={venv}", "setup"]
    by_hand = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MAKE") and name != "COPIES"
    }
    steps = subprocess.run(
        command, cwd=CHECKOUT, env=by_hand, check=True, capture_output=True, text=True
    )
    wanted = f'.ci/install_copies.sh "{venv}/bin/python" "requirements-copies.txt"'
    assert steps.stdout.splitlines() == [wanted]


def test_networks_for_copies_that_are_there_are_left_alone(tmp_path: Path) -> None:
    """Nothing is fetched, and nothing is said. Here it is another package that is there."""
    requirements = tmp_path / "requirements.txt"
    version = subprocess.run(
        [sys.executable, "-c", "from importlib.metadata import version; print(version('pytest'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    requirements.write_text(f"# A comment.\npytest=={version} --hash=sha256:{64 * '0'}\n")
    command = [".ci/install_copies.sh", sys.executable, str(requirements)]
    done = subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True)
    assert done.stdout == done.stderr == ""
