"""What people are told of files and requests that cannot be used."""

import ast
import re

import pytest

from hapvr.reasons import PLAIN, plain_reason, said_of
from tests.conftest import CHECKOUT

TECHNICAL = re.compile(
    r"codec|stream|decod|frame|sampl|shard|pixel|bytes|hapvr|--|errno|exception", re.IGNORECASE
)


def raised_codes() -> set[str]:
    """The codes that the library gives videos that cannot be used."""
    codes = set()
    for path in sorted((CHECKOUT / "hapvr").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            place = {"VideoError": 0, "DownloadResult": 1, "RefusedError": 1}.get(node.func.id)
            if place is None or len(node.args) <= place:
                continue
            code = node.args[place]
            if isinstance(code, ast.Constant) and code.value:
                codes.add(code.value)

    return codes


def test_every_code_of_a_video_has_a_sentence() -> None:
    codes = raised_codes()
    assert len(codes) > 15
    assert sorted(code for code in codes if not plain_reason(code)) == []


@pytest.mark.parametrize("code", PLAIN)
def test_a_reason_is_in_plain_words_and_says_what_to_do(code: str) -> None:
    """Two short sentences, the second of which is what to do; but for a search that somebody ended
    themselves."""
    sentence = plain_reason(code)
    assert not TECHNICAL.search(sentence)
    assert sentence[0].isupper()
    assert sentence.endswith(".")
    assert len(sentence) < 160
    assert sentence.count(". ") == (0 if code == "canceled" else 1)


@pytest.mark.parametrize(
    ("code", "message", "plain"),
    [
        ("http_403", "HTTP Error 403", "The website refused to hand out this video (HTTP 403)."),
        ("no_frames", "query: a.mp4 lasts 3.0 s and has ...; name another part", ""),
        ("no_frames", "video: a.mp4: no frame decodes", "No picture of this file can be read"),
        ("unheard_of", "something else", ""),
    ],
    ids=["of a website", "of a part beyond the end", "of a file", "of a code without a sentence"],
)
def test_a_code_and_its_message_make_a_sentence(code: str, message: str, plain: str) -> None:
    sentence = plain_reason(code, message)
    assert sentence.startswith(plain)
    assert bool(sentence) == bool(plain)


def test_people_read_the_technical_cause_only_where_there_is_no_sentence() -> None:
    cause = "video: a.mp4 has 0 bytes; fetch it again"
    assert said_of("empty_file", cause) == PLAIN["empty_file"]
    assert said_of("unheard_of", cause) == cause
