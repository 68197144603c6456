"""How damaged files are rebuilt."""

from contextlib import suppress

from hapvr.care.checks import check_corpus
from hapvr.chain import CHAIN
from hapvr.data import set_aside
from hapvr.data.manifest import MANIFEST_STAGE, shard_keys
from hapvr.data.shards import STATUS_OK, Shard
from hapvr.errors import DamagedError, DataError
from hapvr.search.current import serving_index
from hapvr.search.descriptors import descriptor_shard
from hapvr.steps.damaged_files import DamagedFile, damaged_files
from hapvr.steps.frame_descriptors import make_descriptors
from hapvr.steps.project import Project
from hapvr.steps.search_index import update_index
from hapvr.steps.search_model import search_model
from hapvr.steps.sources import CORPUS_FOLDER, resolve_sources

MADE_FROM_IT = {"videos": "frames", "frames": "features"}
"""Stages whose videos are read from files, which may be offline, and the stages made from each."""


def remake_downloads(project: Project, key: str) -> None:
    """Fetch or generate damaged videos again, one by one. A file that cannot be fetched again stays
    as it is, with the record of its shard."""
    root = project.root
    shard = Shard(root, "videos", key)
    with shard.lock():
        for damaged in damaged_files(root, key):
            with root.open(shard.index_name) as file:
                record = file.read()
            try:
                _fetch_again(project, key, damaged)
            except (DataError, OSError):
                with root.write(shard.index_name) as stream:
                    stream.write(record)

        lost = damaged_files(root, key)
        if lost:
            raise DataError(
                f"{lost[0].path} cannot be fetched or generated again, so it was left as it is. "
                "Restore it from a copy, or `hapvr forget` its video"
            )


def _fetch_again(project: Project, key: str, damaged: DamagedFile) -> None:
    """Fetch one file again. Raises DataError where that fails, e.g. because a page says that the
    video is gone; the file is then as it was."""
    root = project.root
    if damaged.path.exists() and not damaged.path.is_file():
        raise DataError(f"{damaged.path} {damaged.problem}; remove it")

    def verify() -> None:
        if damaged.video_id in {file.video_id for file in damaged_files(root, key)}:
            raise DataError(f"{damaged.path} cannot be fetched or generated again")

    name = damaged.path.relative_to(root.local_path("downloads").parent).as_posix()
    with set_aside.set_aside(root, name, verify=verify):
        regenerate(project)
        CHAIN["videos"].run(project, key, retry_failed=True, retry_gone=False)


def regenerate(project: Project, name: str = "") -> None:
    """Generate missing videos and benchmarks. name: a folder whose benchmark is rebuilt, too."""
    root = project.root
    with root.lock(MANIFEST_STAGE):
        if not name:
            list(resolve_sources(project))
            return

        benchmark = f"{CORPUS_FOLDER}/{name}/benchmark.json"
        with set_aside.set_aside(root, benchmark, verify=lambda: check_corpus(root, name)):
            list(resolve_sources(project))


def remake_descriptors(project: Project, key: str) -> None:
    """Compute the vectors of a shard again, with the network that made them, and bring the index
    that has them up to date. key: digest of the network / shard."""
    digest, shard = key.split("/")
    serving = serving_index(project.root)
    answering = serving.model if serving is not None and serving.digest == digest else None
    model = search_model(project, answering)
    if model.digest != digest:
        raise DataError(
            "it is of an earlier model; remove its folder, and it is rebuilt when that model "
            "answers again"
        )

    descriptors = descriptor_shard(project.root, digest, shard)
    with set_aside.set_aside(project.root, descriptors.index_name, verify=descriptors.verify):
        make_descriptors(project, shard, model)
    if answering is not None:
        with suppress(DamagedError):  # about the index, which is rebuilt next
            update_index(project, model)


def rebuild_index(project: Project, _: str) -> None:
    """Rebuild the index that answers searches, with the same network."""
    serving = serving_index(project.root)
    model = search_model(project, None if serving is None else serving.model)
    update_index(project, model, rebuild=True)


def remake_shard(project: Project, stage: str, key: str) -> None:
    """Make a shard of a stage again, taking nothing over from the damaged data.

    Raises:
        DataError: the manifest lacks the shard, or videos that it has would be lost."""
    root = project.root
    if key not in shard_keys(root):
        raise DataError(
            f"the manifest lacks it; if it was imported, remove {stage}/{key} and import it again"
        )

    shard = Shard(root, stage, key)
    held = _usable(shard)
    if stage in MADE_FROM_IT:
        held |= _usable(Shard(root, MADE_FROM_IT[stage], key))

    # Without its index nothing is taken over from the damaged data.
    names = (shard.data_name, shard.index_name)
    with set_aside.set_aside(root, *names, verify=shard.verify):
        CHAIN[stage].run(project, key)
        if stage in MADE_FROM_IT:
            _require_kept(shard, held)


def _require_kept(shard: Shard, held: set[str]) -> None:
    """Raise DataError where a rebuilt shard lacks videos that it held, and that nobody has given
    up."""
    if shard.stage == "frames":
        listed = _usable(Shard(shard.root, "videos", shard.key))
    else:
        listed = {row["video_id"] for row in shard.rows()}

    away = held & listed - _usable(shard)
    if away:
        raise DataError(
            f"{len(away)} of its videos, such as {min(away)}, are not there, or are not those "
            "that were read; connect their drive or restore them; `hapvr download` drops them"
        )


def _usable(shard: Shard) -> set[str]:
    """The usable videos of a shard; none if it is its index that is damaged."""
    with suppress(DataError, OSError):
        return {row["video_id"] for row in shard.rows() if row["status"] == STATUS_OK}
    return set()


def remake_scores(project: Project, key: str) -> None:
    """Evaluate a trained model again. key: run / benchmark."""
    from hapvr.steps.evaluation import make_benchmark_scores
    from hapvr.steps.training import trained_run

    run, benchmark = key.split("/")
    make_benchmark_scores(project, trained_run(project, run), benchmark)
