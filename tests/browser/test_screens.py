"""From the graph to the registry in a real browser; then a training that is killed and retried by the daemon."""

from __future__ import annotations

import re

import psutil
import pytest
from playwright.sync_api import Page, expect

from assets.project import PROCESS_TAG
from hapvr.stages.training import tracker_of
from hapvr.tracking.champions import champion_of
from tests.browser.conftest import screenshot
from tests.orchestration.servers import Servers, wait_until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(2400)]

GROUPS = ("ingest", "features", "training", "evaluation", "registry")
RUNS = """query Runs($filter: RunsFilter) { runsOrError(filter: $filter) { ... on Runs { results {
  runId status rootRunId tags { key value } } } } }"""
LAUNCH = """mutation Launch($params: ExecutionParams!) { launchRun(executionParams: $params) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
TERMINATE = """mutation Terminate($run: String!) { terminateRun(runId: $run) { __typename } }"""


@pytest.fixture(scope="module")
def demo_run(servers: Servers) -> dict[str, str]:
    """Id of the demo job's run once it was launched."""
    return {}


def test_the_graph_explains_the_system(servers: Servers, page: Page) -> None:
    """The lineage shows the groups; opened, an asset shows description, owner, columns and checks."""
    page.goto(f"{servers.dagster}/asset-groups")
    for group in GROUPS:
        expect(page.get_by_text(group, exact=True).first).to_be_visible()
    screenshot(page, "1-graph")
    page.goto(f"{servers.dagster}/assets/features?view=overview")
    expect(page.get_by_text("Region features [T, 9, D] in half precision").first).to_be_visible()
    expect(page.get_by_text("timestamp_s").first).to_be_visible()
    screenshot(page, "2-asset")
    page.goto(f"{servers.dagster}/assets/features?view=checks")
    expect(page.get_by_text("feature_norms").first).to_be_visible()
    page.goto(f"{servers.dagster}/automation")
    for name in ("new_videos", "new_shards", "enough_new_videos", "retrain_on_schedule"):
        expect(page.get_by_text(name, exact=True).first).to_be_visible()
    screenshot(page, "3-automation")


def test_the_demo_job_runs_from_the_launchpad(servers: Servers, page: Page, demo_run: dict[str, str]) -> None:
    """Launched with the button, watched until it says Success."""
    page.goto(f"{servers.dagster}/locations/hapvr/jobs/demo/playground")
    page.get_by_role("button", name="Launch run").last.click()
    page.wait_for_url("**/runs/**")
    demo_run["id"] = page.url.rsplit("/", 1)[-1]
    ended = page.get_by_text(re.compile("^(Success|Failure)$")).first
    expect(ended).to_be_visible(timeout=1_200_000)
    screenshot(page, "4-run")
    assert ended.inner_text() == "Success"
    expect(page.get_by_text("registered_model").first).to_be_visible()


def test_plots_of_the_scores_and_the_link_to_mlflow(servers: Servers, page: Page, demo_run: dict[str, str]) -> None:
    """The partition of the benchmark shows metrics and pictures; the link leads to the run, which names its Dagster run."""
    assert demo_run, "the demo job did not run"
    page.goto(f"{servers.dagster}/assets/benchmark_scores?view=partitions")
    page.get_by_text("own-test", exact=True).first.click()
    row = page.get_by_role("row").filter(has_text="precision-recall-DSVR")
    row.get_by_text("Show Markdown").click()
    picture = page.locator("img[src^='data:image/png']")
    expect(picture).to_be_visible()
    assert picture.evaluate("image => image.naturalWidth") > 100
    screenshot(page, "5-plot")
    page.keyboard.press("Escape")
    address = page.get_by_role("link", name=servers.mlflow).first.get_attribute("href")
    assert address is not None
    page.goto(address)
    expect(page.get_by_text("Finished").first).to_be_visible()
    expect(page.get_by_text("dagster.run_id").first).to_be_visible()
    expect(page.get_by_text(demo_run["id"][:20]).first).to_be_visible()
    screenshot(page, "6-mlflow-run")


def test_the_registry_shows_version_and_alias(servers: Servers, page: Page) -> None:
    """Version 1 of hapvr with the alias champion; the gate's decision on the asset, which leads to the version's page with its
    metrics and calibration."""
    page.goto(f"{servers.mlflow}/#/models/hapvr")
    expect(page.get_by_text("Version 1").first).to_be_visible()
    expect(page.get_by_text("champion").first).to_be_visible()
    screenshot(page, "7-registry")
    page.goto(f"{servers.dagster}/assets/registered_model?view=overview")
    expect(page.get_by_text("promoted: there is no champion").first).to_be_visible()
    screenshot(page, "8-decision")
    address = page.get_by_role("link", name=f"{servers.mlflow}/#/models/").first.get_attribute("href")
    assert address is not None
    page.goto(address)
    expect(page.get_by_text("promoted: there is no champion").first).to_be_visible()
    expect(page.get_by_text("wanted precision").or_(page.get_by_text("None: own-validation has")).first).to_be_visible()
    screenshot(page, "9-version")


def test_a_killed_training_is_noticed_and_retried(servers: Servers) -> None:
    """The run's process is killed while it trains: the run fails, its lost asset run too, and the daemon's retry finishes the
    same training as one more version. A second re-training waits in the queue for all that time."""
    selector = {
        "repositoryLocationName": "hapvr",
        "repositoryName": "__repository__",
        "pipelineName": "retrain",
    }

    def launch() -> str:
        parameters = {"selector": selector, "runConfigData": {}, "mode": "default"}
        answer = servers.graphql(LAUNCH, params=parameters)["launchRun"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return str(answer["run"]["runId"])

    def runs(**filters: object) -> list[dict[str, object]]:
        return list(servers.graphql(RUNS, filter=filters)["runsOrError"]["results"])

    def trainer() -> psutil.Process | None:
        for process in psutil.process_iter(["cmdline"]):
            if "hapvr.trainer" in (process.info["cmdline"] or []) and first in " ".join(process.info["cmdline"]):
                return process
        return None

    first = launch()
    wait_until(lambda: runs(runIds=[first])[0]["status"] == "STARTED", "the first re-training", timeout_s=180)
    second = launch()
    wait_until(trainer, "the trainer", timeout_s=300)
    assert runs(runIds=[second])[0]["status"] == "QUEUED"
    servers.graphql(TERMINATE, run=second)
    (nested,) = runs(tags=[{"key": "hapvr/parent_run_id", "value": first}], statuses=["STARTED"])
    tags = {str(tag["key"]): str(tag["value"]) for tag in nested["tags"]}  # type: ignore[attr-defined]
    psutil.Process(int(tags[PROCESS_TAG].rpartition("@")[2].partition(":")[0])).kill()

    wait_until(lambda: runs(runIds=[first])[0]["status"] == "FAILURE", "the failure", timeout_s=180)
    wait_until(lambda: runs(runIds=[nested["runId"]])[0]["status"] == "FAILURE", "the lost asset run", timeout_s=180)

    def retried() -> dict[str, object] | None:
        found = runs(tags=[{"key": "dagster/root_run_id", "value": first}], pipelineName="retrain")
        return next((run for run in found if run["runId"] != first and run["status"] in ("SUCCESS", "FAILURE")), None)

    assert wait_until(retried, "the retry")["status"] == "SUCCESS"
    tracker = tracker_of(servers.project)
    tracked = tracker.client.search_runs([tracker.experiment_id], filter_string=f"tags.`hapvr.run_key` = '{first}'")
    assert [run.info.status for run in tracked] == ["FINISHED"]
    assert len(tracker.client.search_model_versions("name = 'hapvr'")) == 2
    assert champion_of(tracker.client, "hapvr") is not None
