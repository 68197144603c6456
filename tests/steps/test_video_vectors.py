"""One vector per video: kept beside the index of frames, and the first stage of searches."""

import shutil
from pathlib import Path

import pytest

from hapvr.care.forget import forget, plan_forgetting
from hapvr.care.verify import verify_root
from hapvr.errors import DamagedError, DataError
from hapvr.model.checkpoint import build_network, save_network
from hapvr.model.settings import VvsSettings
from hapvr.networks.backbone import load_backbone
from hapvr.networks.whitening import load_whitening
from hapvr.scorer.bundle_writer import BundleParts, complete_bundle, write_bundle
from hapvr.search.current import current_index
from hapvr.search.frame_index import FrameIndex
from hapvr.search.question import BY_WHOLE_VIDEOS
from hapvr.search.video_index import open_videos, videos_place
from hapvr.steps.project import Project
from hapvr.steps.search_index import outdated_index, update_index
from hapvr.steps.search_model import search_model
from hapvr.steps.searcher import Searcher
from hapvr.steps.watch_lists import all_matches, make_watch_matches
from tests.conftest import MakeOnce
from tests.scorer.bundles import write_scenes
from tests.steps.search_projects import DIMS, LONG, SURE, copied, evidence

BY_VIDEOS = {"search.first_stage": "videos"}


def video_bundle(project: Project, folder: Path) -> Path:
    """A bundle whose vector of a video is the mean of its frames: VVS without its weights."""
    settings = VvsSettings(
        distractor_discrimination=False, temporal_saliency=False, topic_guidance=False
    )
    parts = BundleParts(
        network_folder=save_network(
            build_network(settings, dims=DIMS), folder / "network", metadata={}
        ),
        encoder=load_backbone(project.config.backbone),
        whitening=load_whitening(project.root),
        sampling=project.config.sampling,
        calibration=SURE,
    )
    bundle = write_bundle(folder / "videos-bundle", parts)
    complete_bundle(bundle, evidence=evidence(), card="")
    return bundle


@pytest.fixture(scope="module")
def made(searchable: Path, make_once: MakeOnce) -> Path:
    """The folder of a collection whose index has a vector of each video."""

    def make(folder: Path) -> None:
        project = copied(searchable, folder)
        update_index(project, search_model(project, str(video_bundle(project, folder))))

    return make_once("video vectors", make)


@pytest.fixture
def project(made: Path, tmp_path: Path) -> Project:
    """A copy that a test may change, searched by videos."""
    return copied(made, tmp_path, **BY_VIDEOS)


def video_index(project: Project) -> FrameIndex:
    place = current_index(project.root).place
    index = open_videos(project.root, place, project.config.search.index)
    assert index is not None
    return index


def test_each_video_has_one_vector_beside_its_frames(project: Project) -> None:
    index = video_index(project)
    frames = current_index(project.root).open(project.root, project.config.search)
    assert index.videos() == frames.videos()
    assert index.status().frames == len(frames.videos()) < frames.status().frames


def test_a_copy_is_found_by_the_vector_of_its_video(project: Project) -> None:
    answer = Searcher.open(project).search_id("in/trips/copy of short.mp4")
    assert answer.matches[0].reference == "in/short.mp4"


@pytest.mark.parametrize("first_stage", ["frames", "videos"])
def test_an_answer_by_whole_videos_says_so(project: Project, first_stage: str) -> None:
    config = project.folder / "config.yaml"
    overrides = {"search.first_stage": first_stage}
    searcher = Searcher.open(Project.open(config, folder=project.folder, overrides=overrides))
    answer = searcher.search_id("in/short.mp4")
    assert (BY_WHOLE_VIDEOS in answer.warnings) == (first_stage == "videos")


def test_watch_lists_compare_frames_whatever_searches_begin_with(
    made: Path, tmp_path: Path
) -> None:
    """So a short part of a long video is found, and no note of searches ends a comparison."""
    queries = tmp_path / "queries"
    write_scenes(queries / "part.mp4", [*LONG[22:30]])
    watch_list = {"name": "parts", "path": str(queries), "min_probability": 0.5}
    project = copied(made, tmp_path, **BY_VIDEOS, **{"watch.lists": [watch_list]})
    searcher = Searcher.open(project)
    compared = [make_watch_matches(project, searcher, key) for key in sorted(searcher.indexed)]
    assert [comparison.failed for comparison in compared] == [{}] * len(compared)
    assert "in/long.mp4" in {row["video_id"] for row in all_matches(project)}


def test_a_model_without_vectors_of_videos_is_refused(searchable: Path, tmp_path: Path) -> None:
    project = copied(searchable, tmp_path, **BY_VIDEOS)
    with pytest.raises(DataError, match="has no vectors of whole videos"):
        Searcher.open(project)


def test_an_index_that_lacks_its_vectors_of_videos_gets_them(project: Project) -> None:
    model = search_model(project, current_index(project.root).model)
    assert outdated_index(project, model) == ({}, "")
    videos = video_index(project).videos()
    place = videos_place(current_index(project.root).place)
    shutil.rmtree(project.root.local_path(place))
    assert outdated_index(project, model)[1]
    assert update_index(project, model).done
    assert video_index(project).videos() == videos
    assert not update_index(project, model).done


def test_damage_to_vectors_of_videos_is_noticed(project: Project) -> None:
    place = videos_place(current_index(project.root).place)
    folder = project.root.local_path(f"{place}/frames.lance/data")
    file = min(folder.iterdir())
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    states = {check.kind: check.state for check in verify_root(project.root)}
    assert states["search_index"] == "damaged"
    with pytest.raises(DamagedError, match="is not what was written"):
        Searcher.open(project)


def test_a_forgotten_video_has_no_vector(project: Project) -> None:
    forget(project, plan_forgetting(project, ["in/short.mp4"]))
    assert "in/short.mp4" not in video_index(project).videos()
    assert "in/long.mp4" in video_index(project).videos()
    assert {check.state for check in verify_root(project.root)} == {"ok"}
