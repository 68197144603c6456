#!/usr/bin/env bash
# Prints the path of a Python that can make .venv: 3.11, 3.12 or 3.13 with the venv module. PYTHON=... chooses one.
set -euo pipefail
candidates=(python3.11 python3.12 python3.13 python3)
if [ -n "${PYTHON:-}" ]; then candidates=("$PYTHON"); fi
without_venv=""
for candidate in "${candidates[@]}"; do
	# A name may exist without a Python behind it (shims of version managers), so each is run.
	"$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2> /dev/null || continue
	if "$candidate" -c 'import ensurepip, venv' 2> /dev/null; then
		command -v "$candidate"
		exit 0
	fi
	without_venv=$candidate
done
if [ -n "$without_venv" ]; then
	echo "setup: $without_venv has no venv module; install it (on Debian and Ubuntu: apt-get install $without_venv-venv)" >&2
else
	echo "setup: no Python 3.11, 3.12 or 3.13 found (tried: ${candidates[*]}); install one of them," \
		"or name it: make setup PYTHON=/path/to/python3.12" >&2
fi
exit 1
