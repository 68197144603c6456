"""The configuration: frozen pydantic models. `hapvr.config_file` reads them and says what is wrong with a file.

Defaults are the paper's (HAP-VR, section 4 and appendix B). The files under `configs/` state what differs from them.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from hapvr.labels.settings import PseudoLabelSettings
from hapvr.losses.settings import ContrastSettings, ObjectiveSettings
from hapvr.model.settings import DEFAULT_FAMILY, AnyNetworkSettings, NetworkSettings
from hapvr.search.settings import SearchSettings
from hapvr.serving.settings import ServiceSettings
from hapvr.settings import Rate, Settings

Probability = Rate
Split = Literal["train", "validation", "test"]
Policy = Literal["official", "strict", "frozen"]
Precision = Literal["float32", "bfloat16", "float16"]
ExecutorChoice = Literal["auto", "torch", "openvino"]
CopyEdits = Literal["usual", "hard"]
SourceName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]


class FolderSource(Settings):
    """All files below a folder that have a video's suffix; those that are no videos inside become failed rows."""

    kind: Literal["folder"]
    name: SourceName
    path: Path
    split: Split = "train"


class ListSource(Settings):
    """A CSV or Parquet file with a column `url`, or `video_id` of YouTube, and optionally both."""

    kind: Literal["list"]
    name: SourceName
    path: Path
    split: Split = "train"


class DemoCorpusSource(Settings):
    """The generated, labelled corpus; becomes the sources NAME-train, NAME-validation and NAME-test."""

    kind: Literal["demo_corpus"]
    name: SourceName
    num_incidents: Annotated[int, Field(ge=3, le=500)] = 26
    seed: int = 0


class OwnVideosSource(Settings):
    """A folder of unlabelled clips; held-out clips and edited copies of them become validation and test benchmarks."""

    kind: Literal["own_videos"]
    name: SourceName
    path: Path
    validation_rate: Rate = 0.15
    test_rate: Rate = 0.3
    scenes: Path | None = Field(
        default=None,
        description="a CSV file with the columns `file` and `scene`: clips of one scene are all trained on or all held out",
    )
    edits: CopyEdits = Field(
        default="usual", description="of the held-out clips; `hard`: each is altered by several strong edits at once"
    )
    seed: int = 0


class BenchmarkSource(Settings):
    """All videos of a shipped benchmark whose ids are YouTube's, e.g. fivr-200k; `name` is the benchmark's."""

    kind: Literal["benchmark"]
    name: SourceName
    split: Literal["validation", "test"] = "test"


Source = Annotated[
    FolderSource | ListSource | DemoCorpusSource | OwnVideosSource | BenchmarkSource, Field(discriminator="kind")
]


class SamplingConfig(Settings):
    """How videos become frames (method 1)."""

    fps: Annotated[float, Field(gt=0, le=60)] = 1.0
    short_side_px: Annotated[int, Field(ge=32, le=2160)] = 256
    max_frames: Annotated[int, Field(ge=1)] = 3600
    min_frames: Annotated[int, Field(ge=1)] = 1
    timeout_s: Annotated[float, Field(gt=0)] = 120.0
    jpeg_quality: Annotated[int, Field(ge=50, le=100)] = 95
    workers: Annotated[int, Field(ge=1)] = 2
    max_memory_bytes: Annotated[int, Field(ge=2**30)] = Field(
        default=6 * 2**30, description="address space of a decoding process; one that wants more is killed"
    )
    store_frames: bool = Field(
        default=True, description="false: frames are decoded anew by each stage that needs them, and take no disk"
    )

    def content(self) -> dict[str, Any]:
        """What determines the frames; the rest only says how the work is done."""
        return self.model_dump(mode="json", exclude={"workers", "timeout_s", "max_memory_bytes", "store_frames"})


class DownloadConfig(Settings):
    """How remote videos are fetched (yt-dlp)."""

    max_height_px: Annotated[int, Field(ge=144)] = 480
    max_bytes: Annotated[int, Field(ge=1)] = 500_000_000
    rate_limit_bytes_s: Annotated[int, Field(ge=1)] | None = None
    retries: Annotated[int, Field(ge=0)] = 3
    backoff_s: Annotated[float, Field(ge=0)] = Field(default=2.0, description="first wait before a retry; it doubles")
    timeout_s: Annotated[float, Field(gt=0)] = 600.0
    cookies_file: Path | None = None
    proxy: str | None = None
    workers: Annotated[int, Field(ge=1, le=64)] = Field(default=4, description="videos of a shard fetched at once")
    quota_bytes: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="disk space for all downloads together; what does not fit fails and can be retried"
    )
    folder: Path | None = Field(
        default=None,
        description="where files are kept, if not in `downloads` of the data root; needed where that is an object store",
    )

    def content(self) -> dict[str, Any]:
        """What determines which file a video becomes; the rest only says how it is fetched."""
        return self.model_dump(mode="json", include={"max_height_px", "max_bytes"})


class PretrainedWeights(Settings):
    """The published weights of the architecture, from the hub or its local cache."""

    source: Literal["pretrained"] = "pretrained"
    fallback: Literal["none", "random"] = Field(
        default="none",
        description="`random`: if they cannot be had, warn and use seeded random weights; for the demo only",
    )


class FileWeights(Settings):
    """A local .safetensors file, or a .pth file of plain tensors."""

    source: Literal["file"]
    path: Path


class RandomWeights(Settings):
    """Seeded random weights: for tests and for trying the chain without a network."""

    source: Literal["random"]
    seed: int = 0


class TorchScriptWeights(Settings):
    """A TorchScript file: a whole network, such as the published copy-detection networks (SSCD). `architecture` is not used."""

    source: Literal["torchscript"]
    path: Path


ArchitectureName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.]+$")]
Weights = Annotated[PretrainedWeights | FileWeights | RandomWeights | TorchScriptWeights, Field(discriminator="source")]


class FrozenNetworkConfig(Settings):
    """What backbone and teacher share: a network of timm (or a TorchScript file) whose weights are never trained."""

    architecture: ArchitectureName = Field(description="name of a timm network")
    options: dict[str, bool | int | float | str] = Field(
        default={}, description="more arguments of `timm.create_model`, e.g. `{pad_type: same}`"
    )
    mean: tuple[float, float, float] | None = Field(
        default=None, description="of pixels in [0, 1]; none: what timm states for the architecture"
    )
    std: tuple[float, float, float] | None = Field(default=None, description="as `mean`")
    weights: Weights = PretrainedWeights()
    batch_frames: Annotated[int, Field(ge=1)] = 32
    precision: Precision = Field(
        default="float32",
        description="autocast of the network alone; changing it invalidates what the network has made. bfloat16 is faster "
        "only on a processor or GPU that has it, float16 only on a GPU, and it may overflow",
    )
    compile: bool = Field(
        default=False,
        description="torch.compile; needs a C++ compiler, on a GPU Triton. Results stay valid: only their rounding differs",
    )
    executor: ExecutorChoice = Field(
        default="auto",
        description="what runs the network. `auto`: on a processor OpenVINO where it gives the same and is faster, which is "
        "measured once after some frames in torch; on a GPU torch. Results stay valid: only their rounding differs",
    )

    @model_validator(mode="after")
    def _check_executor(self) -> FrozenNetworkConfig:
        if self.compile and self.executor == "openvino":
            raise ValueError("compile is torch's; set compile to false, or executor to torch")
        return self


REGION_KERNEL_RATES = (28 / 56, 14 / 28, 6 / 14, 3 / 7)
"""Side of the pooling kernels as a part of the map's side: those of the 56, 28, 14 and 7 px maps of a 224 px crop."""


def region_kernel(stage: int, side_px: int) -> tuple[int, int]:
    """Side and stride of the max pooling that makes regions of a map of this side."""
    kernel = max(1, round(REGION_KERNEL_RATES[stage] * side_px))
    return kernel, (kernel + 1) // 2


def resnet_gives_regions(crop_px: int) -> bool:
    """Whether all four maps of a ResNet, of 1/4 to 1/32 of the crop's side, are pooled to 3 x 3."""
    for stage in range(len(REGION_KERNEL_RATES)):
        side_px = math.ceil(crop_px / 2 ** (stage + 2))
        kernel, stride = region_kernel(stage, side_px)
        if side_px != 3 and (side_px - kernel) // stride + 1 != 3:
            return False
    return True


NUM_REGIONS = 9
"""Of L3-iMAC, in three rows of three."""


class BackboneConfig(FrozenNetworkConfig):
    """The frozen network g that gives region features (method 1.2)."""

    architecture: ArchitectureName = Field(
        default="resnet50.tv_in1k", description="name of a timm network that gives 3 x 3 regions"
    )
    crop_px: Annotated[int, Field(ge=64, le=1024)] = 224
    class_token: bool = Field(
        default=False, description="append a vision transformer's class token to each of its regions"
    )
    descriptor: Literal["regions", "imac", "l3_irmac"] = Field(
        default="regions",
        description="what is kept of a frame: the nine regions of L3-iMAC, or one vector, as TCA reads it",
    )

    @model_validator(mode="after")
    def _check(self) -> BackboneConfig:
        if self.architecture.startswith("resnet") and not self.options and not resnet_gives_regions(self.crop_px):
            usual = ", ".join(str(side) for side in (128, 160, 192, 224, 256) if resnet_gives_regions(side))
            raise ValueError(f"crop_px {self.crop_px} gives no 3 x 3 regions with a ResNet; e.g. {usual} do")
        return self

    @property
    def num_regions(self) -> int:
        """R, vectors of a frame."""
        return NUM_REGIONS if self.descriptor == "regions" else 1


class TeacherConfig(FrozenNetworkConfig):
    """The frozen network g' that gives pseudo labels (method 1.3)."""

    architecture: ArchitectureName = Field(
        default="vit_small_patch16_224.dino", description="name of a timm network that gives one vector per picture"
    )
    input: Literal["imagenet", "raw"] = Field(
        default="imagenet", description="`raw` repeats the release: pixels 0..255, no mean or deviation taken out"
    )
    crop_px: Annotated[int, Field(ge=64, le=1024)] | None = Field(
        default=None, description="side of the frames that the teacher sees; none: the backbone's"
    )


class WhiteningConfig(Settings):
    """PCA whitening of region vectors."""

    dims: Annotated[int, Field(ge=2, le=3840)] = 512
    max_regions: Annotated[int, Field(ge=2)] = 1_000_000
    eps: Annotated[float, Field(gt=0)] = 1e-7
    seed: int = 0


class FeaturesConfig(Settings):
    """What is kept of every frame beside its whitened regions."""

    pooled: bool = Field(
        default=False,
        description="the mean of the regions before whitening and its magnitude, also of training views; VVS needs them",
    )


class AugmentConfig(Settings):
    """Probabilities and ranges of the augmentations (S2VS 3.2 and its Table 11; HAP-VR B.3)."""

    weak_crop_scale: tuple[Rate, Rate] = (0.8, 1.0)
    strong_crop_scale: tuple[Rate, Rate] = (0.5, 1.0)
    flip_probability: Probability = 0.5
    randaugment_operations: Annotated[int, Field(ge=0)] = 2
    randaugment_magnitude: Annotated[int, Field(ge=0, le=30)] = 9
    text_probability: Probability = 0.3
    emoji_probability: Probability = 0.3
    blur_probability: Probability = 0.5
    shuffle_dropout_probability: Probability = 0.5
    fast_forward_probability: Probability = 0.1
    slow_motion_probability: Probability = 0.1
    reverse_probability: Probability = 0.1
    pause_probability: Probability = 0.1
    shuffle_probability: Probability = 0.5
    dropout_probability: Probability = 0.3
    dropped_content_probability: Probability = 0.5
    video_in_video_probability: Probability = 0.3
    video_in_video_scale: tuple[Rate, Rate] = (0.3, 0.7)
    video_in_video_form: Literal["paper", "release"] = Field(
        default="paper",
        description="`paper`: another video is pasted on the clip, `video_in_video_scale` is a part of the side; "
        "`release`: the clip is pasted on another video, it is a part of the area, and the inset may stick out",
    )

    @model_validator(mode="after")
    def _check(self) -> AugmentConfig:
        temporal = (
            self.shuffle_dropout_probability
            + self.fast_forward_probability
            + self.slow_motion_probability
            + self.reverse_probability
            + self.pause_probability
        )
        if temporal > 1 + 1e-9:
            raise ValueError(
                f"the temporal augmentations exclude each other; their probabilities sum to {temporal:g} > 1"
            )
        for name in ("weak_crop_scale", "strong_crop_scale", "video_in_video_scale"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise ValueError(f"{name}: wanted 0 < low <= high <= 1, got ({low:g}, {high:g})")
        return self


class ViewsConfig(Settings):
    """The training clips of `num_frames` frames. The cache has `num_weak` weak and `num_strong` strong ones of each video."""

    num_frames: Annotated[int, Field(ge=4)] = 28
    num_weak: Annotated[int, Field(ge=1)] = 4
    num_strong: Annotated[int, Field(ge=1)] = 8
    windows: Annotated[int, Field(ge=1)] = Field(
        default=4,
        description="stretches of a video that its cached views are cut from in turn, at most `num_weak` and `num_strong`; "
        "the views of one training item are of one stretch. Online views have a new stretch in every batch",
    )
    seed: int = 0
    augment: AugmentConfig = AugmentConfig()

    @property
    def num_windows(self) -> int:
        """Windows of the cached views of a video; each has a weak and a strong view at least."""
        return min(self.windows, self.num_weak, self.num_strong)

    def window_of(self, index: int) -> int:
        """The number of the window that a cached view is cut from; weak views have the first indices."""
        return (index if index < self.num_weak else index - self.num_weak) % self.num_windows


class OptimizerConfig(Settings):
    """Adam with linear warm-up and cosine decay."""

    kind: Literal["adamw", "adam"] = Field(
        default="adamw",
        description="`adam`: weight decay is added to the gradient (TCA, VVS), not taken off the weights",
    )
    learning_rate: Annotated[float, Field(gt=0)] = 4e-5
    weight_decay: Annotated[float, Field(ge=0)] = 1e-2
    warmup_steps: Annotated[int, Field(ge=0)] = 1000
    warmup_start_rate: Rate = Field(default=0.01, description="first learning rate as a part of `learning_rate`")
    floor_rate: Rate = Field(default=0.1, description="last learning rate as a part of `learning_rate`")
    gradient_clip_norm: Annotated[float, Field(gt=0)] | None = None


SECTION_FAMILIES = {"objective": {"similarity"}, "contrast": {"tca"}}
"""The sections of `train` that only some families read."""


class TrainConfig(Settings):
    """One training run (HAP-VR section 4). The objective is that of the similarity network, the contrast that of TCA."""

    steps: Annotated[int, Field(ge=1)] = 30_000
    batch_videos: Annotated[int, Field(ge=2)] = 64
    seed: int = 0
    num_processes: Annotated[int, Field(ge=1)] = 1
    data_workers: Annotated[int, Field(ge=0)] = Field(
        default=2, description="processes that read views ahead of training"
    )
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    source: Literal["cached_views", "online"] = Field(
        default="cached_views",
        description="`online`: new views are drawn, and the frozen networks run, inside the step, as in the paper",
    )
    weak_views: Annotated[int, Field(ge=1)] = Field(default=1, description="weak views of each video in a batch")
    strong_views: Annotated[int, Field(ge=1)] = Field(default=1, description="strong views of each video in a batch")
    repeat_short_clips: bool = Field(
        default=True,
        description="a video with fewer frames than a clip is shown again to fill it, as in the papers; false: its clips end "
        "with the video, and the rest is masked",
    )
    video_rate: Annotated[float, Field(gt=0, le=1)] = Field(
        default=1.0, description="part of the training videos that is used; the same videos for every seed"
    )
    gather: bool = Field(
        default=True, description="several processes compare and rank the clips of all; false: each its own only"
    )
    accumulate_batches: Annotated[int, Field(ge=1)] = Field(
        default=1, description="batches whose mean gradient makes one step; each is compared by itself"
    )
    ema_decay: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="validate and keep a running mean of the weights; 0: the weights themselves"
    )
    compile: bool = Field(default=False, description="torch.compile; needs a C++ compiler, on a GPU Triton")
    patience: Annotated[int, Field(ge=0)] = Field(
        default=0, description="stop after so many validations without a better one; 0: never"
    )
    log_every_steps: Annotated[int, Field(ge=1)] = 20
    validate_every_steps: Annotated[int, Field(ge=1)] = 1000
    checkpoint_every_steps: Annotated[int, Field(ge=1)] = 500
    keep_checkpoints: Annotated[int, Field(ge=1)] = 2
    network: AnyNetworkSettings = NetworkSettings()
    objective: ObjectiveSettings = ObjectiveSettings()
    contrast: ContrastSettings = ContrastSettings()
    optimizer: OptimizerConfig = OptimizerConfig()

    @model_validator(mode="after")
    def _check(self) -> TrainConfig:
        if self.batch_videos % self.num_processes:
            raise ValueError(
                f"batch_videos {self.batch_videos} must be a multiple of num_processes {self.num_processes}"
            )
        return self

    def content(self) -> dict[str, Any]:
        """What determines the weights; the rest only says how the work is done, and may change when a run goes on."""
        how = {"data_workers", "log_every_steps", "checkpoint_every_steps", "keep_checkpoints"}
        family = self.network.family
        unused = {section for section, families in SECTION_FAMILIES.items() if family not in families}
        content = self.model_dump(mode="json", exclude=how | unused)
        # Trainings that began before there was a choice do not name it, and may go on.
        if family == DEFAULT_FAMILY:
            del content["network"]["family"]
        if self.optimizer.kind == "adamw":
            del content["optimizer"]["kind"]
        return content


class TrackingConfig(Settings):
    """Where MLflow is: a SQLite file under the data root by default, or the address of a server."""

    uri: str | None = None
    experiment: str = "hapvr"
    registered_model: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")] = "hapvr"


class GateConfig(Settings):
    """When a challenger becomes champion: better on the target, worse on no required metric (paired bootstrap over queries)."""

    enabled: bool = Field(default=True, description="false: a new version stays challenger until somebody promotes it")
    required_metrics: tuple[str, ...] = Field(
        default=(), description="metrics that must not get worse; none named: the target metrics"
    )
    confidence: Annotated[float, Field(ge=0.5, lt=1)] = Field(
        default=0.95, description="share of resamples that makes a difference count as real"
    )
    max_drop: Rate = Field(default=0.02, description="a required metric that falls by more is worse, sure or not")
    bootstrap_samples: Annotated[int, Field(ge=100, le=100_000)] = 2000
    seed: int = 0


class NormalizationConfig(Settings):
    """Score normalisation (S2VS Fig. 5): s'(q, r) = s(q, r) - weight * mean of the top_k similarities of q to a background.

    It moves micro-AP and leaves mAP as it is. Normalised metrics stand beside the raw ones; the gate uses the raw ones.
    """

    source: SourceName | None = Field(
        default=None, description="the source whose videos are the background, unrelated to every query; null: off"
    )
    max_videos: Annotated[int, Field(ge=1)] = Field(
        default=1000, description="background videos, drawn with a fixed seed"
    )
    top_k: Annotated[int, Field(ge=1)] = 1
    weight: Annotated[float, Field(ge=0)] = 1.0


class EvaluationConfig(Settings):
    """Benchmarks by name: shipped definitions or those made by a source."""

    benchmarks: tuple[str, ...] = ()
    validation: str | None = None
    policy: Policy = "strict"
    target_metrics: tuple[str, ...] = Field(
        default=("DSVR", "CSVR", "ISVR", "DSVD", "CSVD", "ISVD"),
        description="metrics whose mean decides between two versions; those that a benchmark lacks are left out",
    )
    gate: GateConfig = GateConfig()
    normalization: NormalizationConfig = NormalizationConfig()


class QualityConfig(Settings):
    """Limits of the asset checks. A rate is a part of a shard's videos."""

    max_unavailable_rate: Rate = 0.5
    max_failed_rate: Rate = Field(default=0.2, description="could be had, but could not be decoded")
    max_duplicate_rate: Rate = Field(default=0.1, description="bytes equal to another video's")
    max_frame_rate_error: Rate = Field(
        default=0.1, description="how far frames per second of video may be off `sampling.fps`"
    )
    max_norm_error: Rate = Field(default=0.01, description="how far the norm of a region vector may be off 1")


Job = Literal[
    "find_videos", "ingest", "whiten", "extract", "retrain", "describe", "index", "duplicates", "group", "sweep"
]


class AutomationConfig(Settings):
    """What runs by itself. The switches give the state in which schedules and sensors start; the UI turns them on and off."""

    enabled: bool = Field(default=False, description="start with all schedules and sensors on")
    watch_every_s: Annotated[int, Field(ge=5)] = Field(
        default=300, description="how often sources are looked at for new videos"
    )
    retrain_cron: str = Field(default="0 3 * * 0", description="when to re-train whatever has arrived")
    timezone: str = Field(default="UTC", description="time zone of `retrain_cron`, e.g. Europe/Berlin")
    retrain_new_videos: Annotated[int, Field(ge=1)] = Field(
        default=1000, description="re-train as soon as this many training videos have features the model has not seen"
    )
    duplicates: bool = Field(
        default=False,
        description="with `enabled`, also look for duplicates; a new champion then searches for every video again",
    )
    max_retries: Annotated[int, Field(ge=0, le=10)] = Field(
        default=2, description="of a failed run, from where it failed"
    )
    retry_wait_s: Annotated[float, Field(ge=0)] = Field(
        default=60.0, description="before the first retry of `retrain`; it doubles with each"
    )
    run_resources: dict[Job, dict[Literal["num_cpus", "num_gpus", "memory"], Annotated[float, Field(ge=0)]]] = Field(
        default={},
        description="by job, what a run asks of a Ray cluster, e.g. `{extract: {num_cpus: 2, num_gpus: 0.5}}`; memory in bytes",
    )


class ServingConfig(Settings):
    """Limits of one request to a registered model; stored with it. HAPVR_<NAME> in the environment replaces a value.

    A video, pair or request above a limit gives rows with an error. A request's own parameters can only lower them.
    """

    max_pairs: Annotated[int, Field(ge=1)] = Field(default=10_000, description="pairs of one request")
    max_frame_pairs: Annotated[int, Field(ge=1)] = Field(
        default=1_000_000_000, description="pairs of a query's and a reference's frame, of all pairs of one request"
    )
    max_bytes: Annotated[int, Field(ge=1)] = Field(default=2_000_000_000, description="size of a video file")
    max_frames: Annotated[int, Field(ge=1)] = Field(default=3600, description="sampled frames of a video")
    video_timeout_s: Annotated[float, Field(gt=0)] = Field(
        default=120.0, description="for decoding one video, the second try with another decoder included"
    )
    request_timeout_s: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="for a whole request; none: as long as it takes, or as the model server allows"
    )
    max_memory_bytes: Annotated[int, Field(ge=2**30)] = Field(
        default=6 * 2**30, description="address space of a decoding process"
    )
    max_decoding_requests: Annotated[int, Field(ge=1)] = Field(
        default=2, description="requests that decode at the same time; others wait"
    )
    cache_bytes: Annotated[int, Field(ge=0)] = Field(
        default=256 * 2**20, description="memory for features of the videos seen last"
    )


class Config(Settings):
    """Everything the chain needs to know."""

    name: SourceName
    data_root: str = "data"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    shard_videos: Annotated[int, Field(ge=1)] = 512
    sources: tuple[Source, ...]
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
    quality: QualityConfig = QualityConfig()
    automation: AutomationConfig = AutomationConfig()
    serving: ServingConfig = ServingConfig()
    search: SearchSettings = SearchSettings()
    service: ServiceSettings = ServiceSettings()

    @model_validator(mode="after")
    def _check(self) -> Config:
        if not self.sources:
            raise ValueError("sources: at least one is wanted")
        if self.features.pooled and self.backbone.descriptor != "regions":
            raise ValueError(
                f"features.pooled is made from the nine regions of a frame, and backbone.descriptor is {self.backbone.descriptor}; "
                "set backbone.descriptor: regions, or features.pooled: false"
            )
        names = [source.name for source in self.sources]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"source names must differ, repeated: {', '.join(repeated)}")
        for name in ("weak", "strong"):
            wanted, stored = getattr(self.train, f"{name}_views"), getattr(self.views, f"num_{name}")
            if self.train.source == "cached_views" and wanted > stored // self.views.num_windows:
                raise ValueError(
                    f"train.{name}_views {wanted} is more than the cached views of one window: views.num_{name} {stored} "
                    f"in {self.views.num_windows} windows; raise views.num_{name}, lower views.windows, or set "
                    f"train.source to online"
                )
        if self.evaluation.validation in self.evaluation.benchmarks:
            raise ValueError(f"validation benchmark {self.evaluation.validation!r} must not also be a test benchmark")
        return self


def digest(*settings: Settings) -> str:
    """A 16-digit hex digest of one or more sections; equal settings give equal digests, whatever their order in the file."""
    text = json.dumps([section.model_dump(mode="json") for section in settings], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
