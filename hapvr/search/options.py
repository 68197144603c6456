"""What a search is to give."""

from dataclasses import dataclass

from hapvr.errors import ArgumentError
from hapvr.search import DEFAULT_TOP
from hapvr.search.match import Part


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """What a search is to give.

    Raises: ArgumentError for values out of range.
    """

    top: int = DEFAULT_TOP
    """matches at most, >= 1, and those that people marked"""
    part: Part | None = None
    """of the query; None: all of it"""
    min_probability: float = 0.0
    """in [0, 1], 0 for all; the model needs evidence for it"""
    prior: float | None = None
    """share of matches that probabilities are stated for, in (0, 1); None: the collection's, see
    `Confidence`"""
    segments: bool = True
    """whether to say which parts match"""
    folder: str = ""
    """the beginning of ids that may be found, as "source/holidays" """
    incidents: bool = False
    """rank by the similarity of the trained network, which also finds other footage of an incident,
    instead of by the evidence of a copy"""

    def __post_init__(self) -> None:
        if self.top < 1:
            raise ArgumentError(f"search: top is {self.top}, expected 1 or more")
        if not 0 <= self.min_probability <= 1:
            raise ArgumentError(
                f"search: min_probability is {self.min_probability}, expected a number in [0, 1]"
            )
        if self.prior is not None and not 0 < self.prior < 1:
            raise ArgumentError(
                f"search: prior is {self.prior}, expected the share of matches, above 0 and below 1"
            )
