"""How far steps are, by what is stored."""

from contextlib import nullcontext
from pathlib import Path

from hapvr.chain import chain_status
from hapvr.collection import add_folders, update_collection
from hapvr.progress import Progress, no_progress
from tests.conftest import write_clip


def no_bar(_: str) -> nullcontext[Progress]:
    return nullcontext(no_progress)


def test_an_index_that_lacks_nothing_is_done(tmp_path: Path) -> None:
    write_clip(tmp_path / "clips" / "a.mp4", seed=0, seconds=1)
    project = add_folders(tmp_path / "root", [tmp_path / "clips"])
    update_collection(project, no_bar)
    status = {status.step: status for status in chain_status(project)}
    for step in ("frame_descriptors", "search_index"):
        assert (status[step].done, status[step].missing) == (1, 0)
