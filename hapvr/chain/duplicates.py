"""Pairs of videos that share footage, and groups of copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hapvr.chain.look import Look
from hapvr.chain.step import Step
from hapvr.progress import Progress, no_progress
from hapvr.steps.project import Project

if TYPE_CHECKING:
    from hapvr.steps.searcher import Searcher


class DuplicatePairs(Step):
    """Step 13."""

    name = "duplicate_pairs"
    job = "duplicates"
    does = "finds pairs of the shard's videos with all others that share footage"
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
        """See `make_duplicate_pairs`. searcher: default is one by the index that answers."""
        from hapvr.steps.duplicate_pairs import make_duplicate_pairs
        from hapvr.steps.searcher import Searcher

        searcher = searcher or Searcher.open(project)
        return make_duplicate_pairs(project, searcher, key, progress=progress, **options)

    def lacks(self, look: Look) -> Mapping[str, str] | None:
        """Shards that the model that answers has not searched for, if that is wanted."""
        if not look.is_searchable or not look.project.config.automation.duplicates:
            return None
        return look.unpaired_shards


class DuplicateGroups(Step):
    """Step 14."""

    name = "duplicate_groups"
    job = "group"
    does = "groups copies and says which to keep"
    inputs = ("duplicate_pairs",)

    def run(
        self,
        project: Project,
        key: str = "",
        *,
        progress: Progress = no_progress,
        searcher: Searcher | None = None,
        **options: Any,
    ) -> Any:
        """See `make_duplicate_groups`. searcher: default is one by the index that answers."""
        from hapvr.steps.duplicate_groups import make_duplicate_groups
        from hapvr.steps.searcher import Searcher

        searcher = searcher or Searcher.open(project)
        return make_duplicate_groups(project, searcher, progress=progress, **options)

    def lacks(self, look: Look) -> Mapping[str, str] | None:
        """Groups of other pairs, marks or settings than those of now, once all pairs are there."""
        from hapvr.steps.duplicate_groups import outdated_groups

        if not look.is_searchable or not look.project.config.automation.duplicates:
            return None
        if look.unpaired_shards:
            return None
        groups = outdated_groups(look.project)
        return {"": groups} if groups else {}
