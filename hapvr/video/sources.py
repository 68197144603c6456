"""Which videos a source holds: folders of files, and lists of ids or URLs."""

import codecs
import hashlib
import os
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from mimetypes import guess_type
from pathlib import Path
from urllib.parse import quote

from hapvr.errors import DataError, without_logins
from hapvr.files import PART_SUFFIX, read_bytes
from hapvr.settings import first_line
from hapvr.video.folders import VIDEO_SUFFIXES, list_folder
from hapvr.video.moving_pictures import is_moving_picture
from hapvr.video.signatures import is_film

MAX_ID_LENGTH = 1024
LOOKED_AT = 100
"""How many files of one suffix are read, their first bytes only, to tell whether they are films:
folders of photos have millions of files, and each costs an access to a disk or a server."""
OUR_ENDINGS = (PART_SUFFIX, ".sh.record")
"""Endings of our own files: those that are being written, and records of plans."""
_YOUTUBE_ID = re.compile(r"[A-Za-z0-9_-]{11}")
_ESCAPE = re.compile(rb"\\x([0-9a-f]{2})")
_LIKE_AN_ESCAPE = re.compile(rb"\\(?=x[0-9a-f]{2})")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_CONTROLS_OR_SURROGATES = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_URL = re.compile(r"https?://[^\s\x00-\x1f\x7f]+", re.IGNORECASE)


@dataclass(frozen=True)
class ManifestEntry:
    """One video."""

    video_id: str
    """<source>/<name>, in Unicode normal form C"""
    uri: str
    """a local path (`path_of_text`), an http(s) URL, or youtube:<id>"""


def files_below(root: Path, *, of: str = "") -> list[Path]:
    """The files of `list_folder`, and its errors; warnings name folders that cannot be read."""
    listing = list_folder(root, of=of)
    for problem in listing.unlisted:
        warnings.warn(problem)
    return list(listing.files)


def scan_folder(
    root: Path, *, source: str, exclude: Sequence[str] = (), notices: bool = True
) -> tuple[ManifestEntry, ...]:
    """All videos below a folder, by suffix, sorted by video id; the contents of a file are judged
    later, in its row. Links to files outside of the folder, and to others of these files, are
    skipped.

    exclude: as in `list_folder`. notices: name in warnings what is left out; once is enough. Raises
    DataError as `list_folder` does, and where there is no video."""
    listing = list_folder(root, exclude=exclude, of=f"source {source}: ")
    outside, repeated = _linked(listing.files, root)
    files = [path for path in listing.files if path not in repeated and path not in outside]
    videos = [path for path in files if is_video(path)]
    if notices:
        name = f"source {source}"
        for problem in listing.unlisted:
            warnings.warn(problem)
        _name_outside(name, [*listing.outside, *outside])
        _name_excluded(name, listing.excluded)

    if not videos:
        raise DataError(f"source {source}: no videos in {root}, {_without_videos(files)}")
    if notices:
        _name_left_out(f"source {source}", set(files) - set(videos), ("video",))

    return entries_of_files(videos, root=root, source=source)


def _without_videos(files: Sequence[Path]) -> str:
    """What a folder without videos holds, and what is expected there."""
    films = _films_among(files)
    if films:
        return f"though {min(films)} is one by its first bytes; rename it, for example to .mp4"
    others = f"only {len(files)} other files" if files else "it is empty"
    return f"{others}; expected files such as .mp4, .mkv or .webm"


def _linked(files: Sequence[Path], root: Path) -> tuple[list[Path], set[Path]]:
    """Links to files outside of a folder, and links to files that are listed themselves."""
    top = Path(os.path.realpath(root))
    targets = {path: Path(os.path.realpath(path)) for path in files if os.path.islink(path)}
    places = {top / path.relative_to(root) for path in files if path not in targets}
    outside = [path for path, target in targets.items() if not target.is_relative_to(top)]
    repeated = {path for path, target in targets.items() if target in places}
    return outside, repeated


def is_video(path: Path) -> bool:
    """Whether the name says that the file is a video, or its first bytes that it is a picture with
    several frames."""
    return path.suffix.lower() in VIDEO_SUFFIXES or is_moving_picture(path)


def _name_outside(where: str, links: Sequence[Path]) -> None:
    if links:
        number = f"{len(links)} link{'s lead' if len(links) > 1 else ' leads'}"
        warnings.warn(
            f"{where}: {number} out of the folder and {'are' if len(links) > 1 else 'is'} not "
            f"followed, e.g. {min(links)}; add the folder that it leads to"
        )


def _name_excluded(where: str, excluded: Mapping[str, int]) -> None:
    counted = sorted((name, number) for name, number in excluded.items() if number)
    if counted:
        named = ", ".join(f"{number} in {name}" for name, number in counted[:9])
        warnings.warn(f"{where}: files are excluded: {named}")


def is_picture(path: Path) -> bool:
    """Whether the name says that the file is a still picture."""
    return path.suffix.lower() in (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp")


def query_files(folder: Path) -> list[Path]:
    """Videos and pictures below a folder, sorted; a warning counts other files. Raises DataError as
    `files_below` does."""
    files = files_below(folder)
    used = [path for path in files if is_picture(path) or is_video(path)]
    _name_left_out(str(folder), set(files) - set(used), ("video", "image"))
    return sorted(used)


def _name_left_out(where: str, files: Collection[Path], kinds: tuple[str, ...]) -> None:
    """Warn of files that are skipped because of their names. kinds: see `_name_others`."""
    films = _films_among(files)
    _name_films(where, films)
    _name_others(where, set(files) - films, kinds)


def _films_among(files: Iterable[Path]) -> set[Path]:
    """The files that are films by their first bytes; of each suffix only some are read."""
    films = set[Path]()
    looked_at = Counter[str]()
    for path in sorted(files):
        suffix = path.suffix.lower()
        looked_at[suffix] += 1
        if looked_at[suffix] <= LOOKED_AT and is_film(path):
            films.add(path)

    return films


def _name_films(where: str, films: Collection[Path]) -> None:
    """Warn of films that are skipped because their names do not say what they are."""
    if not films:
        return
    suffixes = Counter(path.suffix.lower() or "no suffix" for path in films)
    named = ", ".join(f"{number} with {suffix}" for suffix, number in sorted(suffixes.items())[:9])
    warnings.warn(
        f"{where}: files that are films by their first bytes are left out: {named}, e.g. "
        f"{min(films)}; rename them, for example to .mp4"
    )


def _name_others(where: str, files: Iterable[Path], kinds: tuple[str, ...]) -> None:
    """Warn of files that are skipped, by suffix. kinds: beginnings of the media types to name,
    besides unknown types."""
    unknown = (one for one in files if not one.name.endswith(OUR_ENDINGS))
    others = [one for one in unknown if (guess_type(one.name)[0] or kinds[0]).startswith(kinds)]
    if counted := sorted(Counter(one.suffix.lower() or "no suffix" for one in others).items()):
        named = ", ".join(f"{number} with {suffix}" for suffix, number in counted[:9])
        warnings.warn(f"{where}: files are left out: {named}; only known suffixes are read")


def entries_of_files(
    files: Iterable[Path], *, root: Path, source: str
) -> tuple[ManifestEntry, ...]:
    """Entries of files below root, sorted by video id; control characters and bytes that are not
    UTF-8 are escaped.

    An id that would be too long ends in a digest of the name. So do all but one of several files
    whose names differ only in their Unicode form."""
    names = {text_of_path(path.relative_to(root)): path for path in files}
    entries: dict[str, ManifestEntry] = {}
    # of names that are equal in normal form, the one that has this form comes first and gets
    # the plain id
    for name in sorted(names, key=lambda text: (not unicodedata.is_normalized("NFC", text), text)):
        readable = _CONTROLS.sub(lambda found: _escaped(found[0].encode()), name)
        video_id = f"{source}/{unicodedata.normalize('NFC', readable)}"
        if len(video_id) > MAX_ID_LENGTH or video_id in entries:
            video_id = _shortened(video_id, name)
        entries[video_id] = ManifestEntry(validate_video_id(video_id), text_of_path(names[name]))

    return tuple(entries[key] for key in sorted(entries))


def read_list(path: Path, *, source: str) -> tuple[ManifestEntry, ...]:
    """Videos of a CSV or Parquet file with a column `url`, `video_id` or both, in its order;
    repeated rows count once.

    A row without a URL needs an 11-character YouTube id; one without an id is named by its
    percent-quoted URL. Raises DataError naming the first wrong row."""
    import polars as pl  # not needed to tell which files are videos

    from hapvr.tables import TABLE_ERRORS, read_user_table

    try:
        table = read_user_table(path)
    except (*TABLE_ERRORS, pl.exceptions.PolarsError) as error:
        raise DataError(
            f"source {source}: {path} is not a readable CSV or Parquet file: "
            f"{first_line(error)}; set the source's path to one"
        ) from error

    if {"url", "video_id"}.isdisjoint(table.columns):
        raise DataError(
            f"source {source}: {path}: expected columns `url`, `video_id` or both, got "
            f"{', '.join(table.columns)!r:.120}; name them in the first line"
        )
    if table.is_empty():
        raise DataError(
            f"source {source}: {path} has no row below its first line; expected a row for each "
            "video"
        )

    entries: dict[str, ManifestEntry] = {}
    for number, row in enumerate(table.iter_rows(named=True), start=1):
        try:
            entry = list_entry(row.get("video_id"), row.get("url"), source=source)
            earlier = entries.setdefault(entry.video_id, entry)
            if earlier.uri != entry.uri:
                shown = without_logins(earlier.uri)
                raise DataError(
                    f"id {entry.video_id!r} already stands for {shown}; give each row an id "
                    "of its own"
                )
        except DataError as error:
            raise DataError(f"source {source}: {path.name} row {number}: {error}") from error

    return tuple(entries.values())


def is_remote(uri: str) -> bool:
    """Whether an entry's uri must be downloaded; otherwise it is a local path."""
    return uri.lower().startswith(("http://", "https://", "youtube:"))


def text_of_path(path: Path) -> str:
    """The path as text that any format can store, which no other path has: bytes that are not UTF-8
    become \\xNN, and so does a backslash that would be read as the beginning of that."""
    name = _LIKE_AN_ESCAPE.sub(rb"\\x5c", os.fsencode(path.as_posix()))
    return name.decode("utf-8", errors="backslashreplace")


def path_of_text(text: str) -> Path:
    """The path from which `text_of_path` made this text."""
    name = _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), os.fsencode(text))
    return Path(os.fsdecode(name))


def _escaped(name: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in name)


def read_lines(path: Path, *, folder: Path) -> list[str]:
    """The lines of a list of videos, without blank lines and comments: lines that begin with # and
    name no file in the folder. The list's bytes are names as the file system has them, in any
    encoding; UTF-16 is recognised by its mark. Raises OSError, ValueError."""
    content = read_bytes(path)
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        content = os.fsencode(content.decode("utf-16"))
    names = content.removeprefix(codecs.BOM_UTF8).replace(b"\r", b"\n").split(b"\n")
    lines = [os.fsdecode(name).strip() for name in names]
    return [line for line in lines if line and (line[0] != "#" or os.path.exists(folder / line))]


def is_inside(video_id: str, folder: str) -> bool:
    """Whether an id is that of a folder of ids, or below it. folder: SOURCE or SOURCE/FOLDER, in
    whole names, with or without a slash at the end; "" holds every id."""
    parts = folder.rstrip("/")
    return not parts or video_id == parts or video_id.startswith(f"{parts}/")


def validate_video_id(video_id: str) -> str:
    """The id itself if it can safely name a video. Raises DataError otherwise."""
    parts = video_id.split("/")
    plain = unicodedata.is_normalized("NFC", video_id) and not _CONTROLS_OR_SURROGATES.search(
        video_id
    )
    if (
        not plain
        or len(parts) < 2
        or not {"", ".", ".."}.isdisjoint(parts)
        or len(video_id) > MAX_ID_LENGTH
    ):
        raise DataError(
            f"video id {video_id!r}: expected <source>/<name> of at most {MAX_ID_LENGTH} "
            "characters, in Unicode normal form C, "
            "without control characters, and with no part between slashes that is empty, '.' "
            "or '..'; rename the video"
        )

    return video_id


def _shortened(video_id: str, name: str) -> str:
    """An id of allowed length that ends in a digest of the name, so that the next scan gives the
    same."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
    return f"{video_id[: MAX_ID_LENGTH - len(digest) - 1]}~{digest}"


def list_entry(video_id: str | int | None, url: str | int | None, *, source: str) -> ManifestEntry:
    """The entry of a row of a list. Raises DataError where neither value names a video, and for
    fractions: programs write whole numbers so where one is missing, and `nan` there."""
    if isinstance(video_id, float):
        raise DataError(f"expected ids that are texts or whole numbers, got {video_id}")
    name = unicodedata.normalize("NFC", str(video_id).strip()) if video_id is not None else ""
    link = str(url).strip() if url is not None else ""
    shown = without_logins(link) or name
    if not (_URL.fullmatch(link) if link else _YOUTUBE_ID.fullmatch(name)):
        raise DataError(
            f"expected columns `url`, `video_id` or both, with an http(s) URL or an "
            f"11-character YouTube id, got {shown!r}"
        )

    full_id = f"{source}/{name or quote(shown, safe=':?=&+')}"
    if not name and len(full_id) > MAX_ID_LENGTH:
        full_id = _shortened(full_id, link)
    return ManifestEntry(validate_video_id(full_id), link or f"youtube:{name}")
