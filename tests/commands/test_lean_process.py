"""What a process that only searches leaves out."""

from tests.conftest import run_python


def test_pyarrow_does_without_pandas() -> None:
    """It still reads and converts."""
    code = (
        "import sys; from hapvr.commands.lean_process import leave_out_pandas\n"
        "leave_out_pandas()\n"
        "import lance, numpy, pyarrow\n"
        "assert pyarrow.array(numpy.arange(3)).to_pylist() == [0, 1, 2]\n"
        "print('pandas' in sys.modules)"
    )
    assert run_python("-c", code).strip() == "False"


def test_pandas_can_be_imported_later() -> None:
    """MLflow needs it, where a server is the registry."""
    code = (
        "from hapvr.commands.lean_process import leave_out_pandas\n"
        "leave_out_pandas()\n"
        "import pandas; print(pandas.DataFrame({'a': [1]})['a'].sum())"
    )
    assert run_python("-c", code).strip() == "1"


def test_a_process_that_has_pandas_keeps_it() -> None:
    code = (
        "import pandas; from hapvr.commands.lean_process import leave_out_pandas\n"
        "leave_out_pandas()\n"
        "import pyarrow; print(pyarrow.array(pandas.Series([1.0, None])).null_count)"
    )
    assert run_python("-c", code).strip() == "1"
