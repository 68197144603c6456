"""Which tests need the package with the networks for copies."""

import pytest

from hapvr.networks.copies import is_package_usable

needs_copies = pytest.mark.skipif(
    not is_package_usable(), reason="the package with the networks for copies is not installed"
)
