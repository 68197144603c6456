"""The configuration as frozen pydantic models. `hapvr.config_file` reads them and reports what is
wrong with a file.

Defaults are the paper's (HAP-VR, section 4 and appendix B). The files under `configs/` state only
what differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, HttpUrl, PrivateAttr, model_validator

from hapvr.augment.settings import ViewsConfig
from hapvr.automation import AutomationConfig
from hapvr.files import digest_of
from hapvr.losses.settings import ContrastSettings, ObjectiveSettings
from hapvr.model.settings import AnyNetworkSettings, NetworkSettings, VvsSettings, needs_extras
from hapvr.networks.settings import (
    BackboneConfig,
    FeaturesConfig,
    PseudoLabelSettings,
    TeacherConfig,
    WhiteningConfig,
)
from hapvr.settings import (
    Address,
    DuplicatesSettings,
    GateConfig,
    Rate,
    SearchSettings,
    ServingConfig,
    Settings,
)
from hapvr.train.settings import PairsConfig
from hapvr.video.settings import PARTS, DownloadConfig, SamplingConfig, Source, SourceName

MAX_STEPS = 100_000_000
"""The most steps of a training: at ten a second, four months."""


class OptimizerConfig(Settings):
    """Adam with linear warm-up and cosine decay."""

    kind: Literal["adamw", "adam"] = "adamw"
    """`adam`: weight decay is added to the gradient (TCA, VVS), not subtracted from the weights"""
    learning_rate: float = Field(default=4e-5, gt=0)
    weight_decay: float = Field(default=1e-2, ge=0)
    warmup_steps: int = Field(default=1000, ge=0, le=MAX_STEPS)
    floor_rate: Rate = 0.1
    """last learning rate as a part of `learning_rate`; 0.1 is from the releases of HAP-VR and S2VS,
    whose papers give none"""


VIEW_STEPS = frozenset({"training_views", "pseudo_labels"})
"""The steps of the chain that make augmented clips."""
TrainSource = Literal["cached_views", "online", "labelled_pairs"]
PAIR_SOURCES: frozenset[TrainSource] = frozenset({"labelled_pairs"})
"""Those of labelled pairs, which `train.pairs` names."""


class TrainConfig(Settings):
    """One training run (HAP-VR section 4). `objective` is for the similarity network, `contrast`
    for TCA."""

    steps: int = Field(default=30_000, ge=1, le=MAX_STEPS)
    batch_videos: int = Field(default=64, ge=1)
    """videos in a batch, with two views of each; or labelled pairs in a batch"""
    accumulated_batches: int = Field(default=1, ge=1)
    """batches in a step; their gradients are averaged"""
    seed: int = 0
    num_processes: int = Field(default=1, ge=1)
    """processes that share a batch; all its clips are compared with one another"""
    data_workers: int = Field(
        default=2, ge=0, description="processes that read views ahead of training"
    )
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    source: TrainSource = "cached_views"
    """`online`: new views are drawn, and the frozen networks run, inside the step, as in the paper;
    `labelled_pairs`: see `train.pairs`"""
    pairs: PairsConfig = PairsConfig()
    videos_rate: float = Field(default=1.0, gt=0, le=1)
    """part of the training videos that take part, drawn by their ids (HAP-VR Table 2: 0.1)"""
    repeat_short_clips: bool = True
    """a video with fewer frames than a clip is shown again to fill it, as in the papers; false: its
    clips end with the video, and the rest is masked"""
    look_alikes: bool = False
    """ours, with cached views: a batch holds videos that look alike, the hardest negatives, but no
    known copies of each other. false: random videos, as in the papers"""
    validate_every_steps: int = Field(
        default=1000, ge=1, description="between two validations, each with a checkpoint"
    )
    network: AnyNetworkSettings = NetworkSettings()
    objective: ObjectiveSettings = ObjectiveSettings()
    contrast: ContrastSettings = ContrastSettings()
    optimizer: OptimizerConfig = OptimizerConfig()

    @property
    def reads_pairs(self) -> bool:
        """Whether its source is of PAIR_SOURCES."""
        return self.source in PAIR_SOURCES

    @property
    def view_steps(self) -> frozenset[str]:
        """The steps that make augmented clips and whose results its source reads."""
        if self.source == "cached_views":
            return VIEW_STEPS
        if self.source == "labelled_pairs" and self.pairs.single_rate > 0:
            return frozenset({"training_views"})
        return frozenset()

    def identity_fields(self) -> dict[str, Any]:
        """The settings that determine the weights; the other keys may change when a run
        continues."""
        only_of = {"objective": "similarity", "contrast": "tca"}
        unused = {section for section, family in only_of.items() if family != self.network.family}
        fields = self.model_dump(mode="json", exclude={"data_workers", *unused})
        if self.reads_pairs:  # the content of the files is part of the data
            fields["pairs"] = self.pairs.model_dump(mode="json", exclude={"path", "distractors"})
        else:
            del fields["pairs"]

        return fields


class TrackingConfig(Settings):
    """Where MLflow is: a SQLite file under the data root by default, or the address of a server,
    whose login is read from the variables MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD."""

    uri: Annotated[str, AfterValidator(Address)] | None = None
    registered_model: str = Field(default="hapvr", pattern=r"^[A-Za-z0-9_-]+$")
    """also the name of the experiment that has the runs"""
    onnx: bool = True
    """also write registered models as ONNX files, which installations without torch score with"""


class EvaluationConfig(Settings):
    """Benchmarks by name: shipped definitions or those made by a source."""

    benchmarks: tuple[str, ...] = ()
    validation: str | None = None
    policy: Literal["official", "strict"] = "strict"
    target_metrics: tuple[str, ...] = ("DSVR", "CSVR", "ISVR", "DSVD", "CSVD", "ISVD")
    """metrics whose mean decides between two versions; those that a benchmark lacks are skipped"""
    gate: GateConfig = GateConfig()


class WatchList(Settings):
    """Queries that every shard is compared with."""

    name: SourceName
    path: str = Field(
        min_length=1,
        description="a folder of videos and pictures, or a text file with one path per line",
    )
    min_probability: float = Field(default=0.9, gt=0, le=1)
    """of a match; pairs that people marked as a match count in any case"""


class WebhookConfig(Settings):
    """Where to post, as JSON, matches of watch lists and what needs a person. No redirect is
    followed, and no proxy is used."""

    url: Annotated[
        str,
        Field(pattern=r"^https?://[^\s]+$"),
        AfterValidator(lambda url: Address(HttpUrl(url))),
    ]
    secret: str | None = Field(default=None, min_length=16, repr=False)
    """`${NAME}` of an environment variable; its HMAC-SHA256 of each body is sent along"""


class WatchConfig(Settings):
    """Watch lists, and where to report their matches and what needs a person."""

    lists: tuple[WatchList, ...] = ()
    webhook: WebhookConfig | None = Field(default=None, description="null: nothing is posted")


class RetentionConfig(Settings):
    """How long runs and answers are kept. Kept for ever: runs of registered versions, the current
    model, and the run that last made each asset."""

    run_days: float | None = Field(default=180.0, ge=1, le=36_500)
    """how long after their end runs of Dagster, and trainings without a registered version, are
    removed, with logs, artifacts and folders; null: they are kept"""
    answer_days: float = Field(default=30.0, ge=0, le=36_500)
    """how long answers of the search service stay at their address, with small pictures of the
    query; 0: until the service ends"""


def _changeable(value: Any) -> Any:
    """The same values, with lists in place of tuples."""
    if isinstance(value, dict):
        return {key: _changeable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_changeable(inner) for inner in value]
    return value


class Config(Settings):
    """Everything the chain needs to know."""

    name: SourceName
    data_root: str = Field(default="data", min_length=1)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    shard_videos: int = Field(default=512, ge=1, le=1_000_000)
    sources: Annotated[tuple[Source, ...], Field(min_length=1)]
    sampling: SamplingConfig = SamplingConfig()
    download: DownloadConfig = DownloadConfig()
    backbone: BackboneConfig = BackboneConfig()
    teacher: TeacherConfig = TeacherConfig()
    whitening: WhiteningConfig = WhiteningConfig()
    features: FeaturesConfig = FeaturesConfig()
    views: ViewsConfig = ViewsConfig()
    pseudo_labels: PseudoLabelSettings = PseudoLabelSettings()
    train: TrainConfig = TrainConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    tracking: TrackingConfig = TrackingConfig()
    automation: AutomationConfig = AutomationConfig()
    retention: RetentionConfig = RetentionConfig()
    serving: ServingConfig = ServingConfig()
    search: SearchSettings = SearchSettings()
    duplicates: DuplicatesSettings = DuplicatesSettings()
    watch: WatchConfig = WatchConfig()
    _variables: dict[tuple[str | int, ...], str] = PrivateAttr(default_factory=dict)

    def set_variables(self, variables: Mapping[tuple[str | int, ...], str]) -> None:
        """Remember which values came from environment variables: path -> the text in the file, e.g.
        "${TOKEN}"."""
        self._variables.update(variables)

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """As it is stored: without the values of environment variables, and with addresses as they
        may be shown."""
        yield from self._with_names_of_variables(_changeable(self.model_dump())).items()

    def training_identity(self) -> dict[str, Any]:
        """The settings that, with the data, determine the weights of a training."""
        dumped = self.model_dump(mode="json", include={"views", "pseudo_labels"})
        return dumped | {"train": self.train.identity_fields()}

    def stored(self) -> dict[str, Any]:
        """The form in which it may be stored: JSON values, with the names of environment variables
        in place of their values."""
        return self._with_names_of_variables(self.model_dump(mode="json"))

    def _with_names_of_variables(self, values: dict[str, Any]) -> dict[str, Any]:
        """Values of the configuration that came from environment variables, as the file has them.

        values: changed in place
        """
        for (*parents, last), text in self._variables.items():
            node: Any = values
            for part in parents:
                node = node[part]
            node[last] = text

        return values

    @model_validator(mode="after")
    def _check(self) -> Config:
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        """Settings that do not go together."""
        yield from self._feature_problems()
        yield from self._name_problems()
        yield from self._training_problems()
        yield from self._source_problems()
        validation = self.evaluation.validation
        if validation in self.evaluation.benchmarks:
            yield f"validation benchmark {validation!r} must not also be a test benchmark"

    def _feature_problems(self) -> Iterator[str]:
        """Problems with pooled vectors."""
        if self.features.pooled and self.backbone.descriptor != "regions":
            yield (
                "features.pooled is made from the nine regions of a frame, and "
                f"backbone.descriptor is {self.backbone.descriptor}; set it to regions, or pooled "
                "to false"
            )

        if needs_extras(self.train.network) and not self.features.pooled:
            yield (
                "features.pooled: set it to true; train.network.distractor_discrimination "
                "reads pooled vectors"
            )

    def _name_problems(self) -> Iterator[str]:
        """Problems with the names of sources and watch lists."""
        sources = [f"{source.name}{part}" for source in self.sources for part in PARTS]
        repeated = _repeated(sources)
        if repeated:
            yield (
                "source names must differ, also with -train or -held-out behind them, repeated: "
                f"{repeated}; rename one"
            )

        repeated = _repeated([watch_list.name for watch_list in self.watch.lists])
        if repeated:
            yield f"watch.lists: names must differ, repeated: {repeated}; rename one"

    def _training_problems(self) -> Iterator[str]:
        """Problems with the network's family and with processes."""
        train = self.train
        network = train.network
        if isinstance(network, VvsSettings) and not train.repeat_short_clips:
            yield (
                "train.repeat_short_clips: false, and family vvs compares clips of one "
                "length; set it to true"
            )

        if network.family != "similarity" and train.num_processes > 1:
            yield f"train.num_processes: family {network.family} trains in one process; set it to 1"
        if train.batch_videos % train.num_processes:
            yield (
                f"train.batch_videos {train.batch_videos} must be a multiple of "
                f"num_processes {train.num_processes}"
            )

    def _source_problems(self) -> Iterator[str]:
        """Settings that do not go together with `train.source`."""
        train = self.train
        if not train.reads_pairs:
            if train.batch_videos < 2:
                yield (
                    "train.batch_videos: 1 video has no negatives; set 2 or more, or source to "
                    "labelled_pairs"
                )

            return

        if train.pairs.path is None:
            yield "train.pairs.path: name the file or folder that has the labelled pairs"
        if train.num_processes > 1:
            yield f"train.num_processes: source {train.source} trains in one process; set it to 1"
        if train.network.family == "similarity" and train.objective.frame_ap_weight > 0:
            yield (
                "train.objective.frame_ap_weight: labelled pairs have no labels of frames; set it "
                "to 0"
            )


def _repeated(names: Sequence[str]) -> str:
    """The first name, in the order of text, that occurs more than once; "" if none does."""
    return min((name for name in names if names.count(name) > 1), default="")


def digest(*settings: Settings) -> str:
    """A 16-digit hex digest of one or more sections; equal settings give equal digests, whatever
    their order in the file."""
    return digest_of([section.model_dump(mode="json") for section in settings])[:16]
