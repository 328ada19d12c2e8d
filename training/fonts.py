"""Font families for drawn screens: which are for training, which are held out, and where they come from.

``python -m training.fonts`` copies the files from the installed Debian packages into ``training/fonts_cache/``.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from PIL import ImageFont

CACHE = Path(__file__).parent / "fonts_cache"
SYSTEM_FOLDERS = (Path("/usr/share/fonts"), Path("/usr/share/texmf/fonts"))


@dataclass(frozen=True, slots=True)
class Family:
    """One typeface: its Debian package, licence, split ("train" or "eval") and the file names used."""

    name: str
    package: str
    licence: str
    split: str
    files: tuple[str, ...]


def _family(name: str, package: str, licence: str, split: str, files: str) -> Family:
    return Family(name, package, licence, split, tuple(files.split()))


OFL = "OFL-1.1"
APACHE = "Apache-2.0"
FAMILIES = (
    _family("DejaVu Sans", "fonts-dejavu-core", "Bitstream-Vera", "train", "DejaVuSans.ttf DejaVuSans-Bold.ttf"),
    _family("DejaVu Sans Condensed", "fonts-dejavu-extra", "Bitstream-Vera", "train", "DejaVuSansCondensed.ttf"),
    _family("DejaVu Mono", "fonts-dejavu-core", "Bitstream-Vera", "train", "DejaVuSansMono.ttf"),
    _family("DejaVu Serif", "fonts-dejavu-core", "Bitstream-Vera", "train", "DejaVuSerif.ttf"),
    _family("Liberation Sans", "fonts-liberation", OFL, "train", "LiberationSans-Regular.ttf LiberationSans-Bold.ttf"),
    _family("Liberation Narrow", "fonts-liberation", OFL, "train", "LiberationSansNarrow-Regular.ttf"),
    _family("Liberation Serif", "fonts-liberation", OFL, "train", "LiberationSerif-Regular.ttf"),
    _family("Liberation Mono", "fonts-liberation", OFL, "train", "LiberationMono-Regular.ttf"),
    _family(
        "Open Sans", "fonts-open-sans", APACHE, "train", "OpenSans-Regular.ttf OpenSans-Semibold.ttf OpenSans-Bold.ttf"
    ),
    _family("Noto Sans", "fonts-noto-core", OFL, "train", "NotoSans-Regular.ttf NotoSans-Bold.ttf"),
    _family("Noto Sans Display", "fonts-noto-core", OFL, "train", "NotoSansDisplay-Regular.ttf"),
    _family("Noto Serif", "fonts-noto-core", OFL, "train", "NotoSerif-Regular.ttf"),
    _family("Lato", "fonts-lato", OFL, "train", "Lato-Regular.ttf Lato-Semibold.ttf Lato-Bold.ttf"),
    _family("Carlito", "fonts-crosextra-carlito", OFL, "train", "Carlito-Regular.ttf Carlito-Bold.ttf"),
    _family("Inter", "fonts-inter", OFL, "train", "Inter-Regular.otf Inter-Medium.otf Inter-Bold.otf"),
    _family("Hack", "fonts-hack", "MIT and Bitstream-Vera", "train", "Hack-Regular.ttf"),
    _family("FreeSans", "fonts-freefont-ttf", "GPL-3+ with font exception", "train", "FreeSans.ttf FreeSansBold.ttf"),
    _family("FreeSerif", "fonts-freefont-ttf", "GPL-3+ with font exception", "train", "FreeSerif.ttf"),
    _family("Quicksand", "fonts-quicksand", OFL, "train", "Quicksand-Medium.ttf Quicksand-Bold.ttf"),
    _family("Comfortaa", "fonts-comfortaa", OFL, "train", "Comfortaa-Regular.ttf Comfortaa-Bold.ttf"),
    _family("JetBrains Mono", "fonts-jetbrains-mono", OFL, "train", "JetBrainsMono-Regular.ttf"),
    _family("Play", "fonts-play", OFL, "train", "Play-Regular.ttf Play-Bold.ttf"),
    _family("Andika", "fonts-sil-andika", OFL, "train", "Andika-Regular.ttf Andika-Bold.ttf"),
    _family("Gentium Basic", "fonts-sil-gentium-basic", OFL, "train", "GenBasR.ttf GenBasB.ttf"),
    _family("Biolinum", "fonts-linuxlibertine", OFL, "train", "LinBiolinum_R.otf LinBiolinum_RB.otf"),
    _family("Cabin", "fonts-cabin", OFL, "train", "Cabin-Regular.otf Cabin-Bold.otf"),
    _family("Mononoki", "fonts-mononoki", OFL, "train", "mononoki-Regular.ttf"),
    _family("Inconsolata", "fonts-inconsolata", OFL, "train", "Inconsolata.otf"),
    _family("Tuffy", "fonts-tuffy", "public domain", "train", "Tuffy.ttf Tuffy_Bold.ttf"),
    _family("Dosis", "fonts-dosis", OFL, "train", "Dosis-Medium.otf Dosis-Bold.otf"),
    _family("Jura", "fonts-jura", OFL, "train", "Jura-Medium.otf Jura-Bold.otf"),
    _family("Allerta", "fonts-allerta", OFL, "train", "allerta_medium.otf"),
    _family("Averia Sans", "fonts-averia-sans-gwf", OFL, "train", "AveriaSansGWF-Regular.ttf"),
    _family("Go", "fonts-go", "BSD-3-Clause", "train", "Go-Regular.ttf Go-Medium.ttf Go-Bold.ttf"),
    _family("M PLUS 1", "fonts-mplus", OFL, "train", "Mplus1-Regular.otf Mplus1-Bold.otf"),
    _family("Heros", "fonts-texgyre", "GUST-1.0", "train", "texgyreheros-regular.otf texgyreheros-bold.otf"),
    _family("Adventor", "fonts-texgyre", "GUST-1.0", "train", "texgyreadventor-regular.otf"),
    _family("Junction", "fonts-junction", OFL, "train", "Junction.otf"),
    _family("Gillius", "fonts-adf-gillius", "GPL-2+ with font exception", "train", "GilliusADF-Regular.otf"),
    _family("Quattrocento", "fonts-quattrocento", OFL, "train", "Quattrocento-Regular.otf"),
    _family("Roboto", "fonts-roboto-unhinted", APACHE, "eval", "Roboto-Regular.ttf Roboto-Medium.ttf Roboto-Bold.ttf"),
    _family("Cantarell", "fonts-cantarell", OFL, "eval", "Cantarell-Regular.otf Cantarell-Bold.otf"),
    _family("PT Sans", "fonts-paratype", "ParaType Free Font License", "eval", "PTS55F.ttf PTS75F.ttf"),
    _family("PT Serif", "fonts-paratype", "ParaType Free Font License", "eval", "PTF55F.ttf"),
    _family("Karla", "fonts-karla", OFL, "eval", "Karla-Regular.otf Karla-Bold.otf"),
    _family("Manrope", "fonts-manrope", OFL, "eval", "Manrope-Medium.ttf Manrope-Bold.ttf"),
    _family("Oxygen", "fonts-oxygen", OFL, "eval", "Oxygen-Sans.ttf Oxygen-Sans-Bold.ttf"),
    _family("Clear Sans", "fonts-clear-sans", APACHE, "eval", "ClearSans-Regular.ttf ClearSans-Medium.ttf"),
    _family("B612", "fonts-b612", "OFL-1.1, EPL-2.0 and EDL-1.0", "eval", "B612-Regular.otf B612-Bold.otf"),
    _family("Fira Code", "fonts-firacode", OFL, "eval", "FiraCode-Regular.ttf"),
    _family("Caladea", "fonts-crosextra-caladea", "Apache-2.0 and OFL-1.1", "eval", "Caladea-Regular.ttf"),
)


def families(split: str) -> tuple[Family, ...]:
    """All families of a split ("train" or "eval"), in a fixed order."""
    return tuple(f for f in FAMILIES if f.split == split)


def missing() -> list[str]:
    """File names that are not in the cache yet."""
    return [name for family in FAMILIES for name in family.files if not (CACHE / name).is_file()]


@lru_cache(maxsize=4096)
def load(file: str, size: int) -> ImageFont.FreeTypeFont:
    """One font of the cache at ``size`` pixels per em."""
    return ImageFont.truetype(str(CACHE / file), size, layout_engine=ImageFont.Layout.BASIC)


@lru_cache(maxsize=65536)
def advance(font: ImageFont.FreeTypeFont, char: str) -> float:
    """How far one character moves the pen, in pixels (kerning left out)."""
    return font.getlength(char)


def gather() -> list[str]:
    """Copy every file from the installed packages into the cache. Returns the names that were not found."""
    CACHE.mkdir(exist_ok=True)
    found: dict[str, Path] = {}
    for folder in SYSTEM_FOLDERS:
        for path in sorted(folder.rglob("*.[ot]tf")):
            found.setdefault(path.name, path)
    for name in missing():
        if name in found:
            shutil.copyfile(found[name], CACHE / name)
    return missing()


def main() -> None:
    absent = gather()
    if absent:
        packages = sorted({f.package for f in FAMILIES if set(f.files) & set(absent)})
        raise SystemExit(f"fonts missing: {', '.join(absent)}; apt-get install {' '.join(packages)}")
    print(f"{len(FAMILIES)} families in {CACHE}")


if __name__ == "__main__":
    main()
