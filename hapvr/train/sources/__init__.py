"""Sources of training batches, by the name that `train.source` gives them."""

from hapvr.train.sources.cached_views import CachedViews
from hapvr.train.sources.labelled_pairs import LabelledPairs
from hapvr.train.sources.online_views import OnlineViews
from hapvr.train.sources.source import BatchSource

SOURCES: dict[str, type[BatchSource]] = {
    "cached_views": CachedViews,
    "online": OnlineViews,
    "labelled_pairs": LabelledPairs,
}
