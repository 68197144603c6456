"""What searches read, and what searches find for watch lists. Promotions and rollbacks happen
outside Dagster, so these steps tell from the champion what they lack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hapvr.chain.look import Look
from hapvr.chain.step import Step
from hapvr.progress import Progress, no_progress
from hapvr.steps.project import Project

if TYPE_CHECKING:
    from hapvr.steps.search_model import SearchModel
    from hapvr.steps.searcher import Searcher


class FrameDescriptors(Step):
    """Step 11."""

    name = "frame_descriptors"
    job = "describe"
    does = "computes one vector per frame with the champion's network"
    inputs = ("features", "registered_model")
    shards = "collection"
    gpu = True

    def run(
        self,
        project: Project,
        key: str = "",
        *,
        progress: Progress = no_progress,
        model: SearchModel | None = None,
        **options: Any,
    ) -> Any:
        """See `make_descriptors`. model: default is the champion."""
        from hapvr.steps.frame_descriptors import make_descriptors
        from hapvr.steps.search_model import search_model

        model = model or search_model(project)
        return make_descriptors(project, key, model, progress=progress, **options)

    def lacks(self, look: Look) -> Mapping[str, str] | None:
        """Shards whose features the champion has not described."""
        return None if look.model is None else look.undescribed_shards


class SearchIndex(Step):
    """Step 12."""

    name = "search_index"
    job = "index"
    does = "builds the index that searches use"
    inputs = ("frame_descriptors",)

    def run(
        self,
        project: Project,
        key: str = "",
        *,
        progress: Progress = no_progress,
        model: SearchModel | None = None,
        **options: Any,
    ) -> Any:
        """See `update_index`. model: default is the champion."""
        from hapvr.steps.search_index import update_index
        from hapvr.steps.search_model import search_model

        return update_index(project, model or search_model(project), progress=progress, **options)

    def lacks(self, look: Look) -> Mapping[str, str] | None:
        """What the descriptors have and the index has not, once all are there."""
        if look.model is None or look.undescribed_shards:
            return None
        return {"": look.index_lacks} if look.index_lacks else {}


class WatchMatches(Step):
    """Step 15."""

    name = "watch_matches"
    job = "watch"
    does = "compares the queries of watch lists with the shard, and posts matches on request"
    inputs = ("search_index",)
    shards = "collection"
    gpu = True

    def run(
        self,
        project: Project,
        key: str = "",
        *,
        progress: Progress = no_progress,
        searcher: Searcher | None = None,
        **options: Any,
    ) -> Any:
        """See `make_watch_matches`. searcher: default is one by the index that answers."""
        from hapvr.steps.searcher import Searcher
        from hapvr.steps.watch_lists import make_watch_matches

        searcher = searcher or Searcher.open(project)
        return make_watch_matches(project, searcher, key, progress=progress, **options)

    def lacks(self, look: Look) -> Mapping[str, str] | None:
        """Shards that were not compared with the lists as they are, where there are any."""
        from hapvr.steps.watch_lists import unwatched_shards
        from hapvr.steps.watch_queries import watch_lists

        if not look.is_searchable or not watch_lists(look.project):
            return None
        return unwatched_shards(look.project)
