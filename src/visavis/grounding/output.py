"""Where a picture may be written, and writing it whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from PIL import Image

from visavis.errors import OptionError, shorten

__all__ = ["check_image_path", "save_image"]

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}


def check_image_path(path: str | Path) -> Path:
    """`path` as a Path, if a picture can be written there. Raises OptionError otherwise; writes nothing."""
    target = Path(path).expanduser()
    if target.suffix.lower() not in FORMATS:
        raise OptionError(f"{shorten(str(path))}: the file must end in {', '.join(FORMATS)}")
    folder = target.parent
    if not folder.is_dir():
        raise OptionError(f"{shorten(str(path))}: the folder {shorten(str(folder))} does not exist; make it first")
    if target.is_dir():
        raise OptionError(f"{shorten(str(path))}: is a folder, a file name is needed")
    if not os.access(folder, os.W_OK) or (target.exists() and not os.access(target, os.W_OK)):
        raise OptionError(f"{shorten(str(path))}: may not be written here")
    return target


def save_image(image: Image.Image, path: str | Path) -> None:
    """Writes beside the target and renames, so that no half file is ever seen."""
    target = check_image_path(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            image.save(file, format=FORMATS[target.suffix.lower()], quality=92)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp makes private files
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
