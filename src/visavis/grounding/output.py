"""Where a picture may be written, and writing it whole or not at all."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from PIL import Image

from visavis.errors import OptionError, shorten_path

__all__ = ["check_image_path", "save_image"]

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}


def check_image_path(path: str | Path) -> Path:
    """`path` as a Path, if a picture can be written there. Raises OptionError otherwise; writes nothing."""
    target, shown = Path(path).expanduser(), shorten_path(str(path))
    try:
        end = Path(os.path.realpath(target))  # through a link to its end: renaming onto it would replace the link
        with suppress(FileNotFoundError):
            end.lstat()  # raises for a name no file can have
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "is not a valid path"
        raise OptionError(f"{shown}: cannot be written: {reason}") from None
    if target.suffix.lower() not in FORMATS:
        raise OptionError(f"{shown}: the file must end in {', '.join(FORMATS)}")
    target = end
    folder = target.parent
    if not folder.is_dir():
        raise OptionError(f"{shown}: the folder {shorten_path(str(folder))} does not exist; make it first")
    if target.is_dir():
        raise OptionError(f"{shown}: is a folder, a file name is needed")
    if not os.access(folder, os.W_OK) or (target.exists() and not os.access(target, os.W_OK)):
        raise OptionError(f"{shown}: may not be written here")
    return target


def save_image(image: Image.Image, path: str | Path) -> None:
    """Writes beside the target and renames, so that no half file is ever seen. Raises OptionError."""
    target = check_image_path(path)
    try:
        _write(image, target, FORMATS[Path(path).suffix.lower()])
    except (OSError, ValueError) as error:  # a full disk; more pixels than the format can hold
        reason = getattr(error, "strerror", None) or error
        raise OptionError(f"{shorten_path(str(path))}: cannot be written: {reason}") from None


def _write(image: Image.Image, target: Path, image_format: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".visavis-", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            image.save(file, format=image_format, quality=92)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp makes private files
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
