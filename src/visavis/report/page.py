"""One self-contained HTML page: style and charts inside, no script, nothing fetched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["legend", "render"]

_HERE = Path(__file__).parent


def render(
    templates: Path,
    name: str,
    values: Mapping[str, Any],
    filters: Mapping[str, Any] | None = None,
    *,
    css: str | None = None,
) -> str:
    """`templates/name` extends `page.html.j2`; everything is escaped but what a chart function made (Markup).

    `css`: a file in `templates` with what this page needs beyond the style of all pages.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([templates, _HERE]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters or {})
    from markupsafe import Markup

    files = [_HERE / "page.css", *([] if css is None else [templates / css])]
    style = Markup("\n".join(file.read_text("utf-8") for file in files))
    return environment.get_template(name).render(**values, css=style)


def legend(names: Sequence[str]) -> str:
    """Each series' marker and name, as an HTML list."""
    from html import escape

    from visavis.report.charts import SERIES, marker

    items = [
        f'<li><svg class="series-{i % SERIES}" viewBox="0 0 14 14" aria-hidden="true">{marker(i, 7, 7, 5)}</svg>'
        f"{escape(name)}</li>"
        for i, name in enumerate(names)
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'
