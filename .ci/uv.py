"""Run uv with pip's package index: python .ci/uv.py pip install ...

uv does not read pip's configuration, and the machine's mirror, certificates and proxy are usually
configured there. Installs uv into the running interpreter's environment if it is not there yet.
Variables UV_* that are already set win.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

UV = "uv==0.13.9"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]

# pip's option -> the variables that tell uv the same
VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
}


def pip_options() -> dict[str, str]:
    """Option -> value as `pip install` would see it; the environment wins over [install], and that
    over [global]."""
    listed = subprocess.run(
        [*PIP, "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    options: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        section, _, option = key.rpartition(".")
        if section in options:
            options[section][option] = str(ast.literal_eval(value))

    return options["global"] | options["install"] | options[":env:"]


def environment() -> dict[str, str]:
    """The environment for uv."""
    variables: dict[str, str] = {}
    for option, value in pip_options().items():
        if option in VARIABLES:
            values = value.split()
            variables[VARIABLES[option]] = (",".join if option == "find-links" else " ".join)(
                values
            )

    # pip looks for the best version on every index, while uv stops at the first one that knows the
    # package.
    variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return variables | dict(os.environ) | {"VIRTUAL_ENV": sys.prefix}


def main() -> int:
    uv = Path(sys.prefix) / "bin" / "uv"
    if not uv.exists():
        subprocess.run([*PIP, "install", "--quiet", UV], check=True)
    return subprocess.run([uv, *sys.argv[1:]], env=environment()).returncode


if __name__ == "__main__":
    sys.exit(main())
