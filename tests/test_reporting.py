"""What programs of ours report on standard error."""

import warnings

import pytest

import hapvr.reporting
from hapvr.reporting import report_for_people


@pytest.mark.parametrize(
    ("raised_by", "shown"),
    [
        pytest.param(hapvr.reporting.__file__, "warning: a file is left out\n", id="our own"),
        pytest.param(pytest.__file__, "", id="a library's"),
    ],
)
def test_our_own_warnings_are_lines_for_people(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised_by: str, shown: str
) -> None:
    """Those of libraries are not shown. Processes that search report as `hapvr` does."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setenv("MLFLOW_LOGGING_LEVEL", "ERROR")
    report_for_people()
    warnings.showwarning("a file is left out", UserWarning, raised_by, 1)
    assert capsys.readouterr().err == shown
