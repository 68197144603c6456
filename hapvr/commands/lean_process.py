"""What a process that only searches leaves out."""

import sys
from typing import Any


class _WithoutPandas:
    """A finder of modules by which pandas is missing."""

    @staticmethod
    def find_spec(name: str, *_: Any) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is left out", name=name)


def leave_out_pandas() -> None:
    """Have pyarrow take pandas for missing, in this process from now on. It would import it with
    the first value that it converts, which takes a seventh of a search, and tables of pandas do not
    occur. Called before anything else imports pyarrow."""
    if "pandas" in sys.modules:
        return
    finder: Any = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow as pa

        pa.array(())  # it looks once
    finally:
        sys.meta_path.remove(finder)
