"""The public benchmarks whose ids and labels come with the package."""

SHIPPED = {
    "fivr-5k": "FIVR-5K: 50 queries, 5,000 videos; DSVR, CSVR, ISVR, DSVD, CSVD, ISVD, "
    "normal and hard",
    "fivr-200k": "FIVR-200K: 100 queries, 225,960 videos; the same tasks",
    "evve": "EVVE: 620 queries, 2,373 videos of 13 events",
    "svd": "SVD: 206 queries, 6,355 labelled pairs; `hapvr benchmarks import svd` adds the "
    "unlabelled videos, on which the papers report",
    "cc_web_video": "CC_WEB_VIDEO: 24 query sets, 13,125 videos (papers: 13,129); four variants of "
    "mAP",
}
"""Name -> what it holds and measures."""
