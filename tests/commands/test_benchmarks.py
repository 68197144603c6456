"""`hapvr benchmarks`."""

from tests.commands.conftest import Call


def test_list_says_what_there_is(call: Call) -> None:
    """Text and JSON name every benchmark."""
    benchmarks = call("benchmarks", "list", "--json").json["benchmarks"]
    assert {"fivr-5k", "fivr-200k", "evve", "svd", "cc_web_video"} <= set(benchmarks)
    text = call("benchmarks", "list").out
    assert all(name in text for name in benchmarks)
