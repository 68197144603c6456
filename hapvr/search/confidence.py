"""How sure answers are of their matches, and for which share of matches among candidates."""

from dataclasses import dataclass
from typing import Literal

from hapvr.data.filesystem import DataRoot
from hapvr.data.stamped import read_rows, stamp
from hapvr.scorer.calibration import Calibration
from hapvr.scorer.evidence import EvidenceModel
from hapvr.search.duplicates import GROUP_SCHEMA, GROUPS_PLACE
from hapvr.search.options import SearchOptions
from hapvr.search.scored import ScoredCandidate

ASKED_SHARE = 0.5
"""Share of queries that have a copy in the collection, as among the fitted searches: it cannot be
known beforehand."""


@dataclass(frozen=True, kw_only=True)
class Confidence:
    """What the probabilities of answers come from."""

    evidence: EvidenceModel | None
    """of copies; None where none was fitted"""
    incidents: Calibration | None
    """from the trained network's similarity to the probability that two videos show the same
    incident; None of an untrained model, whose similarity is ranked by alone"""
    usual_prior: float
    """share of matches among candidates that is assumed unless a search names another"""

    def is_given(self, options: SearchOptions) -> bool:
        """Whether answers to such a search have probabilities."""
        if options.incidents:
            return self.incidents is not None
        return self.evidence is not None

    def prior(self, options: SearchOptions) -> float | None:
        """The share of matches for which the probabilities of an answer hold; None: it has none."""
        if options.incidents:
            return None if self.incidents is None else options.prior or self.incidents.prior
        return None if self.evidence is None else options.prior or self.usual_prior

    def prior_of(self, options: SearchOptions) -> Literal["pairs", "searches"]:
        """What the prior is a share of."""
        if options.incidents or self.evidence is None:
            return "pairs"
        return self.evidence.prior_of

    def of_candidate(
        self, candidate: ScoredCandidate, options: SearchOptions, *, same_file: bool
    ) -> float | None:
        """Probability of a match; 1 for the same bytes, None from a model that gives none."""
        if not self.is_given(options):
            return None
        if same_file:
            return 1.0
        if options.incidents:
            assert self.incidents is not None
            return self.incidents.probability(candidate.similarity, prior=options.prior)

        assert self.evidence is not None
        if candidate.log_odds is None:
            return None
        return self.evidence.probability(candidate.log_odds, prior=self.prior(options))


def usual_prior(root: DataRoot, evidence: EvidenceModel | None, num_candidates: int) -> float:
    """The prior that is assumed unless a search names another: ASKED_SHARE of the searches
    have a match, and find as many copies of it as the collection's videos have."""
    if evidence is not None and evidence.prior_of == "searches":
        return ASKED_SHARE
    groups = read_rows(root, GROUPS_PLACE, GROUP_SCHEMA, damaged=True)
    copies = float(stamp(groups, "copies") or 0)
    return min(ASKED_SHARE * (1 + copies) / max(num_candidates, 1), ASKED_SHARE)
