"""Why a file or a request cannot be used, in words for people who know nothing of codecs, each with
what to do next. The technical cause stands in JSON and in logs."""

import re

PLAIN = {
    # of files
    "empty_file": "This file is empty. Copy it again from where it came from.",
    "unwritten_file": (
        "Nearly all of this file was never written, as if its download went on. Let it end, or "
        "fetch the file again."
    ),
    "missing_file": (
        "There is no such file, or it may not be read. Check where it is, and who may read it."
    ),
    "not_video": "This file is neither a video nor a photo that can be read. Choose another file.",
    "no_video_stream": (
        "This file has sound but no pictures, so there is nothing to compare. Choose a video or a "
        "photo."
    ),
    "unsupported_codec": (
        "This kind of video cannot be read. Convert it to MP4 (H.264), then try once more."
    ),
    "decode_error": (
        "This file is damaged, or of a kind that cannot be read. Copy it again, or convert it to "
        "MP4."
    ),
    "no_frames": (
        "No picture of this file can be read; it may be damaged or end too early. Copy it again, "
        "or convert it to MP4."
    ),
    "no_picture": (
        "This is black, or of one colour, from beginning to end, so there is nothing to compare. "
        "Choose a video or a part that shows something."
    ),
    "crashed": (
        "This file could not be read: the reader gave up. Convert it to MP4, then try once more."
    ),
    "changed_file": (
        "This file changed while it was read, as if it was still being copied. Wait until it is "
        "complete, then update once more."
    ),
    "replaced": "This file is another one by now. Update the collection, then try once more.",
    "not_kept": (
        "The clip itself is not here any more. Drop it on the page once more, then watch for it."
    ),
    "no_unit_vectors": (
        "The pictures of this file could not be described. Convert it to MP4, then try once more."
    ),
    "not_scored": (
        "The pictures of this file could not be compared. Convert it to MP4, then try once more."
    ),
    "too_large": (
        "This file, or its picture, is larger than what is taken. Choose a shorter or smaller copy."
    ),
    "too_long": "This video is longer than one search may be. Choose a shorter piece of it.",
    "timeout": "This took too long and was ended. Try a shorter piece of the video.",
    # of downloads
    "gone": "This is not there any more. Fetch the file again, or ask whoever had it.",
    "live": "This is being broadcast now. Wait until it has ended, or save a part of it yourself.",
    "unsupported": (
        "This address cannot be downloaded from here. Download the video yourself, then use the "
        "file."
    ),
    "network": "The network did not bring this video. Check the connection, then try once more.",
    "no_file": "This address did not give a video. Download it yourself, then use the file.",
    "local_address": (
        "This address is within the network of the service. Send the file instead of its address."
    ),
    "disk_full": "The disk is full. Free some space, then try once more.",
    "not_allowed": (
        "The service may not read this place or address. Send the file instead, or ask whoever "
        "runs the service."
    ),
    # of requests
    "too_many_pairs": "These are too many videos at once. Ask for fewer.",
    "too_much_work": "These videos are too long to be compared at once. Ask for fewer or shorter.",
    "unknown_job": (
        "This answer is gone: the service was started again, or many searches came after it. "
        "Search once more."
    ),
    "unknown_id": "The collection has no video of this name. Choose one of the suggestions.",
    "upload_timeout": ("The file arrived too slowly. Try again, or over a faster connection."),
    "canceled": "The search was canceled.",
    "busy": "Many searches run just now. Try again in a few seconds.",
    "no_paths": (
        "A plan says where files are, which this service does not show. Ask whoever runs the "
        "service for a plan."
    ),
    "wrong_role": (
        "Your token lets you search and look, not change anything. Ask whoever runs the service "
        "for one with the role `mark`."
    ),
}
"""Code of an error -> a sentence. Codes that are not here have messages that are plain enough."""

_HTTP = re.compile(r"http_(\d{3})")


def plain_reason(code: str, message: str = "") -> str:
    """What a code means and what to do, in a sentence or two; "" where the message says it best."""
    if code == "no_frames" and "name another part" in message:
        return ""  # the message tells how long the video is
    status = _HTTP.fullmatch(code)
    if status is not None:
        return (
            f"The website refused to hand out this video (HTTP {status[1]}). Check the address, or "
            "download the video yourself and use the file."
        )

    return PLAIN.get(code, "")


def said_of(code: str, message: str) -> str:
    """What people read of an error: the plain sentence, or the message where that says it best.
    JSON has the message, which names the technical cause, too."""
    return plain_reason(code, message) or message
