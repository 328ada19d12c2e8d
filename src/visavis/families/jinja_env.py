"""The environment chat templates are written for: sandboxed jinja with the filters and globals transformers gives."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from visavis.errors import ModelError, shorten

__all__ = ["CompiledTemplate", "compile_template"]


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks the model's own words for training; here it just renders."""

    tags = {"generation"}  # noqa: RUF012 (jinja's own interface)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    # Not jinja's own, which escapes HTML characters.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment


@dataclass(frozen=True, slots=True)
class CompiledTemplate:
    """`variables`: every name it may read from outside; `options`: those it never sets itself."""

    template: jinja2.Template
    variables: frozenset[str]
    options: frozenset[str]


@lru_cache(maxsize=32)
def compile_template(source: str) -> CompiledTemplate:
    """Raises ModelError for bad syntax."""
    environment = _environment()
    try:
        template = environment.from_string(source)
        tree = environment.parse(source)
    except jinja2.TemplateSyntaxError as error:
        raise ModelError(
            f"the chat template has a syntax error in line {error.lineno}: {shorten(str(error))}"
        ) from None
    variables = frozenset(jinja2.meta.find_undeclared_variables(tree))
    assigned = {name.name for name in tree.find_all(jinja2.nodes.Name) if name.ctx == "store"}
    return CompiledTemplate(template, variables, variables - assigned)
