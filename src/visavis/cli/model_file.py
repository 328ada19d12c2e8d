"""`-m` may name a file that describes a model: what it says holds where no flag says otherwise."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from visavis.errors import OptionError, shorten

if TYPE_CHECKING:
    from visavis.backends.description import ModelDescription
    from visavis.families import Family

__all__ = ["described_by", "interpreters_of", "keep_box_format", "use_model_file"]


def use_model_file(args: Namespace) -> None:
    """Reads it where `-m` names one: `args.model` becomes the model, `args.described` the rest, and the file's backend
    the one asked for where the command takes one and none was given. Raises OptionError, ModelError."""
    from visavis.backends.description import is_description, read_description

    args.model_file, args.described = None, None
    if not is_description(args.model):
        return
    asked = getattr(args, "backend", None) or getattr(args, "backends", None)
    first = None if asked is None else asked.split(",")[0].rpartition("=")[2].strip()
    described = read_description(args.model, first or None)
    args.model_file, args.described, args.model = args.model, described, described.model
    if getattr(args, "backend", "") is None:
        args.backend = described.backend
    if hasattr(args, "trust_remote_code"):
        args.trust_remote_code = args.trust_remote_code or bool(described.options.get("trust_remote_code"))


def described_by(args: Namespace) -> ModelDescription | None:
    """What the file says, if `-m` named one."""
    found: ModelDescription | None = getattr(args, "described", None)
    return found


def keep_box_format(args: Namespace, family: Family) -> None:
    """The file's box format goes before the model's own."""
    described = described_by(args)
    if described is not None and described.box_format is not None:
        family.box_format = described.box_format


def interpreters_of(args: Namespace, names: tuple[str, ...]) -> dict[str, str]:
    """Interpreters by backend (or compare's name for one): the file's, and --python over them.

    `names`: those that may be named. A path alone is for the only one. Raises OptionError.
    """
    described = described_by(args)
    found = {} if described is None else {k: v for k, v in described.python.items() if k in names}
    for text in getattr(args, "python", None) or ():
        name, equals, path = text.partition("=")
        if not equals:
            if len(names) != 1:
                raise OptionError(f"--python {shorten(text, 200)} is for which backend? --python {names[0]}=PATH")
            name, path = names[0], text
        if name not in names:
            raise OptionError(f"--python {shorten(text, 200)}: {shorten(name)} is not used here; {', '.join(names)}")
        found[name] = path
    return found
