"""VCDB and SVD from files of the authors' form: the protocol against slow loops, and what is
refused or marked."""

import codecs
import re
from dataclasses import dataclass

import numpy as np
import polars as pl
import pytest

from hapvr.benchmark.definition import BenchmarkDefinition, load_definition
from hapvr.benchmark.protocol import evaluate
from hapvr.benchmark.published_files import import_svd, import_vcdb
from hapvr.errors import DataError


def average_precision(hits, scores, num_relevant):
    """Mean precision at the hits of a ranking without ties."""
    ranked = np.array(hits)[np.argsort(scores)[::-1]]
    precision = np.cumsum(ranked) / np.arange(1, len(ranked) + 1)
    return float((precision * ranked).sum() / num_relevant)


@dataclass(frozen=True)
class Figures:
    """Mean average precision over queries that have something to find, and micro-AP over all
    pairs."""

    mean: float
    micro: float


def figures_by_loop(pools, relevant, scores):
    """The figures, query by query.

    pools: what each query ranks.
    relevant: pairs of a query and what it should find.
    scores: of all pairs.
    """
    per_query = []
    all_hits = []
    all_scores = []
    for query, pool in pools.items():
        hits = [(query, video) in relevant for video in pool]
        of_pool = [scores[query, video] for video in pool]
        if any(hits):
            per_query.append(average_precision(hits, of_pool, sum(hits)))
        all_hits += hits
        all_scores += of_pool

    micro = average_precision(all_hits, all_scores, sum(all_hits))
    return Figures(float(np.mean(per_query)), micro)


def scores_of(queries, database, seed=0):
    """Different similarities of all pairs, as a table and as {(query, reference): similarity}."""
    rng = np.random.default_rng(seed)
    values = rng.permutation(len(queries) * len(database)) / (len(queries) * len(database))
    pairs = [(query, reference) for query in queries for reference in database]
    columns = {
        "query_id": [query for query, _ in pairs],
        "reference_id": [reference for _, reference in pairs],
        "similarity": values,
    }
    return pl.DataFrame(columns), dict(zip(pairs, values, strict=True))


def write_vcdb(folder, *, num_videos=56, num_events=28):
    """Annotation files of VCDB's form: an event each, segments of pairs, some pairs repeated, and
    some within one video."""
    rng = np.random.default_rng(1)
    (folder / "annotation").mkdir(parents=True)
    per_event = num_videos // num_events
    pairs = set()
    for event in range(num_events):
        videos = [f"video{event * per_event + number}" for number in range(per_event)]
        videos.append(f"video{int(rng.integers(num_videos))}")
        lines = []
        for first, second in zip(videos, [*videos[1:], videos[0]], strict=True):
            lines.append(f"{first}.flv,{second}.mp4,00:00:01,00:00:10,00:01:05,00:01:14")
            lines.append(f"{first}.flv,{second}.mp4,00:00:21,00:00:30,00:02:05,00:02:14")
            if first != second:
                pairs |= {(first, second), (second, first)}

        (folder / "annotation" / f"event_{event}.txt").write_text("\n".join(lines) + "\n")

    return pairs


NUM_CORE = 56
DISTRACTORS = [f"other{number}" for number in range(40)]


@dataclass(frozen=True)
class VCDB:
    """VCDB as it was imported, with distractors or without, and the pairs that share a segment."""

    definition: BenchmarkDefinition
    relevant: set[tuple[str, str]]


@pytest.fixture(scope="module")
def vcdb(tmp_path_factory):
    """The core dataset alone."""
    folder = tmp_path_factory.mktemp("vcdb")
    relevant = write_vcdb(folder / "files", num_videos=NUM_CORE)
    import_vcdb(folder / "files", folder / "out")
    return VCDB(load_definition(folder / "out"), relevant)


@pytest.fixture(scope="module")
def vcdb_with_distractors(tmp_path_factory):
    """The core dataset among other videos."""
    folder = tmp_path_factory.mktemp("vcdb with distractors")
    relevant = write_vcdb(folder / "files", num_videos=NUM_CORE)
    listed = folder / "distractors.txt"
    listed.write_text("".join(f"{name}.mp4\n" for name in DISTRACTORS))
    import_vcdb(folder / "files", folder / "out", distractors=listed)
    return VCDB(load_definition(folder / "out"), relevant)


def test_distractors_give_vcdb_another_name(vcdb, vcdb_with_distractors):
    assert vcdb.definition.name == "vcdb"
    assert vcdb_with_distractors.definition.name == "vcdb-distractors"


@pytest.mark.parametrize(
    ("fixture", "distractors"),
    [("vcdb", []), ("vcdb_with_distractors", DISTRACTORS)],
    ids=["core", "core and distractors"],
)
def test_every_core_video_of_vcdb_is_a_query_and_distractors_are_none(
    request, fixture, distractors
):
    definition = request.getfixturevalue(fixture).definition
    core = {f"video{number}" for number in range(NUM_CORE)}
    assert set(definition.queries) == core
    assert set(definition.database) == core | set(distractors)


@pytest.mark.parametrize("fixture", ["vcdb", "vcdb_with_distractors"])
def test_vcdb_equals_the_loop_over_queries(request, fixture):
    """A query ranks all other videos; those that share a segment with it are relevant."""
    imported = request.getfixturevalue(fixture)
    definition = imported.definition
    table, scores = scores_of(definition.queries, definition.database)
    pools = {
        query: [video for video in definition.database if video != query]
        for query in definition.queries
    }
    by_loop = figures_by_loop(pools, imported.relevant, scores)
    metrics = evaluate(definition, table, policy="official").metrics
    assert metrics["VCDB_mAP"] == pytest.approx(by_loop.mean)
    assert metrics["VCDB_uAP"] == pytest.approx(by_loop.micro)


def test_a_core_that_is_not_that_of_the_papers_is_noted(vcdb):
    assert "56 core videos, the papers have 528" in str(vcdb.definition.provenance["note"])


@pytest.mark.parametrize(
    ("num_lines", "marked"),
    [pytest.param(9_235, True, id="cut"), pytest.param(9_236, False, id="whole")],
)
def test_annotation_that_lacks_segments_is_noted(tmp_path, num_lines, marked):
    """A file that was cut between two lines has other labels than the papers."""
    (tmp_path / "vcdb" / "annotation").mkdir(parents=True)
    lines = [
        f"video{number % 528}.flv,video{number % 527}.flv,00:00:01,00:00:10,00:01:05,00:01:14"
        for number in range(num_lines)
    ]
    (tmp_path / "vcdb" / "annotation" / "all.txt").write_text("\n".join(lines) + "\n")
    definition = import_vcdb(tmp_path / "vcdb", tmp_path / "out")
    note = "9,235 copied segments, the papers have 9,236: not their labels"
    assert definition.provenance["note"] == (note if marked else "")


def write_svd(folder, *, unlabelled):
    """SVD's test set as it ships here, in the form of its authors, and a list of unlabelled
    videos."""
    folder.mkdir()
    labels = load_definition("svd").labels
    lines = [
        f"{query} {candidate} {int(label == 'positive')}"
        for query, candidate, label in labels.rows()
    ]
    (folder / "test_groundtruth").write_text("\n".join(lines) + "\n")
    (folder / "unlabeled-data-id").write_text("\n".join(unlabelled) + "\n")


UNLABELLED = [f"{number}.mp4" for number in range(50)]


@pytest.fixture(scope="module")
def svd(tmp_path_factory):
    """SVD with unlabelled videos, as it was imported."""
    folder = tmp_path_factory.mktemp("svd")
    write_svd(folder / "files", unlabelled=UNLABELLED)
    return import_svd(folder / "files", folder / "out")


def test_svd_with_unlabelled_videos_has_the_queries_and_pairs_of_its_labels(svd):
    assert svd.name == "svd-unlabelled"
    assert len(svd.queries) == 206
    assert len(svd.labels) == 6355


@pytest.mark.slow
def test_svd_ranks_the_unlabelled_videos_for_every_query(svd):
    """A query ranks its own candidates and all unlabelled videos, not the candidates of other
    queries."""
    labels = svd.labels.rows()
    pools = {query: [] for query in svd.queries}
    for query, candidate, _ in labels:
        pools[query].append(candidate)
    for pool in pools.values():
        pool += UNLABELLED
    relevant = {(query, candidate) for query, candidate, label in labels if label == "positive"}

    table, scores = scores_of(svd.queries, svd.database)
    by_loop = figures_by_loop(pools, relevant, scores)
    metrics = evaluate(svd, table, policy="official").metrics
    assert metrics["mAP"] == pytest.approx(by_loop.mean)
    assert metrics["uAP"] == pytest.approx(by_loop.micro)


def test_a_pool_of_svd_that_is_not_that_of_the_paper_is_noted(svd):
    note = "50 unlabelled videos, the papers have 526,787: not their pool"
    assert svd.provenance["note"] == note


def cut_annotation(folder):
    file = folder / "annotation" / "event_3.txt"
    text = file.read_text()
    file.write_text(text[: len(text) - 20])


def empty_annotation(folder):
    (folder / "annotation" / "event_3.txt").write_text("")


def wrong_time(folder):
    file = folder / "annotation" / "event_3.txt"
    file.write_text(file.read_text().replace("00:01:14", "74", 1))


def no_annotation(folder):
    for file in (folder / "annotation").iterdir():
        file.unlink()


def fewer_files(folder):
    (folder / "core_dataset").mkdir()
    (folder / "core_dataset" / "video0.flv").touch()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut_annotation, "event_3.txt: line 6"),
        (empty_annotation, "event_3.txt: it is empty"),
        (wrong_time, "event_3.txt: line 1 has the time '74', expected H:MM:SS"),
        (no_annotation, "no files *.txt"),
        (fewer_files, "videos of the annotation are not there"),
    ],
)
def test_damaged_annotation_is_refused_with_its_place(tmp_path, damage, said):
    write_vcdb(tmp_path / "vcdb")
    damage(tmp_path / "vcdb")
    with pytest.raises(DataError, match=re.escape(said)):
        import_vcdb(tmp_path / "vcdb", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["other1.mp4", "video7.mp4"], "'video7' is also a core video (1 in all)"),
        (["other1.mp4", "other1.flv"], "'other1' is repeated (1 in all)"),
        ([], "no distractors in it"),
    ],
)
def test_a_list_of_distractors_holds_distractors(tmp_path, lines, said):
    write_vcdb(tmp_path / "vcdb")
    listed = tmp_path / "distractors.txt"
    listed.write_text("\n".join(lines))
    with pytest.raises(DataError, match=re.escape(said)):
        import_vcdb(tmp_path / "vcdb", tmp_path / "out", distractors=listed)


def test_unlabelled_videos_of_svd_are_no_queries(tmp_path):
    query = load_definition("svd").queries[0]
    write_svd(tmp_path / "svd", unlabelled=["1.mp4", query])
    with pytest.raises(DataError, match=r"is also a query \(1 in all\)"):
        import_svd(tmp_path / "svd", tmp_path / "out")


def test_a_label_that_svd_does_not_have_is_refused_with_its_line(tmp_path):
    write_svd(tmp_path / "svd", unlabelled=["1.mp4"])
    (tmp_path / "svd" / "test_groundtruth").write_text("a b 1\na c 2\n")
    with pytest.raises(DataError, match="line 2 has the label '2'"):
        import_svd(tmp_path / "svd", tmp_path / "out")


def test_labelled_videos_in_the_unlabelled_list_are_noted(tmp_path):
    candidate = load_definition("svd").database[0]
    write_svd(tmp_path / "svd", unlabelled=["1.mp4", candidate])
    definition = import_svd(tmp_path / "svd", tmp_path / "out")
    assert definition.database.count(candidate) == 1
    assert "1 of them are labelled" in str(definition.provenance["note"])


def test_the_hard_version_leaves_out_the_released_list():
    """The release lists 4,873 easy videos, the paper counts 4,828; each of the list is a duplicate
    (ND or DS) of a query, so nothing in it tells which 45 the paper kept."""
    definition = load_definition("fivr-200k")
    easy = set(definition.exclusions.filter(exclusion="easy_duplicates")["reference_id"])
    assert len(easy) == 4873
    assert easy <= set(definition.database)
    duplicates = definition.labels.filter(pl.col("label").is_in(["ND", "DS"]))
    assert easy <= set(duplicates["reference_id"])


def test_evve_is_also_reported_event_by_event():
    """13 events; the result is the mean over queries, not over events (VVS Table F)."""
    definition = load_definition("evve")
    assert len(set(definition.events.values())) == 13
    assert set(definition.events) == set(definition.queries)
    chosen = definition.queries[::20]
    table, _ = scores_of(chosen, definition.database[::4])
    result = evaluate(definition, table, policy="official")
    of_maps, of_micro = result.tasks
    assert of_micro.by_event == {}
    counts = {}
    for query in chosen:
        event = definition.events[query]
        counts[event] = counts.get(event, 0) + 1

    assert set(of_maps.by_event) == set(counts)
    total = sum(of_maps.by_event[event] * count for event, count in counts.items())
    assert of_maps.value == pytest.approx(total / len(chosen))


@pytest.mark.parametrize(
    "place", ["annotation/event_0.txt", "distractors.txt", "test_groundtruth", "unlabeled-data-id"]
)
def test_a_byte_order_mark_is_no_part_of_an_id(tmp_path, place):
    """As some editors write one first; the first video would be another one without a word."""
    write_vcdb(tmp_path, num_events=4, num_videos=8)
    (tmp_path / "distractors.txt").write_text("d1\nd2\n")
    (tmp_path / "test_groundtruth").write_text("q1 a1 1\nq1 a2 0\n")
    (tmp_path / "unlabeled-data-id").write_text("u1\nu2\n")
    file = tmp_path / place
    file.write_bytes(codecs.BOM_UTF8 + file.read_bytes())
    vcdb = import_vcdb(tmp_path, tmp_path / "vcdb", distractors=tmp_path / "distractors.txt")
    svd = import_svd(tmp_path, tmp_path / "svd")
    assert not [video for video in vcdb.video_ids + svd.video_ids if "\ufeff" in video]
