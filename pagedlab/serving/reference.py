"""The page /docs: every path of the server, from its own schema. It loads nothing from the web."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from pagedlab.serving.openai_api import UNSUPPORTED
from pagedlab.serving.schema_words import Field, fields_of

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>pagedlab: reference of the server</title>
<link rel="icon" href="data:,">
<style>
  :root {{ color-scheme: light dark; background: light-dark(#fff, #111);
    color: light-dark(#1f2328, #e6e6e6); }}
  a {{ color: light-dark(#0b57d0, #8ab4f8); }}
  body {{ max-width: 1100px; margin: 0 auto; padding: 16px; font: 15px/1.5 system-ui, sans-serif; }}
  h2 {{ margin: 24px 0 4px; font: 600 16px/1.4 ui-monospace, monospace; }}
  section {{ overflow-x: auto; }}
  td, th {{ padding: 3px 14px 3px 0; text-align: left; vertical-align: top; }}
  @media (max-width: 600px) {{
    tr, td {{ display: block; }}
    tr {{ padding: 6px 0; border-bottom: 1px solid light-dark(#d0d7de, #3d444d); }}
    tr:first-child {{ display: none; }}
    td {{ padding: 0; overflow-wrap: anywhere; }}
    td:nth-child(2)::before {{ content: "accepted: "; }}
    td:nth-child(3)::before {{ content: "default: "; }}
  }}
</style>
</head>
<body>
<main>
<h1>Reference of the server</h1>
<p>The API is OpenAI's, so its own reference and clients apply: completions, chats and models.
Not supported: tools, a <code>response_format</code> other than text, embeddings, images and audio.
A field that is null counts as left out. <a href="openapi.json">openapi.json</a> is the schema, for
tools. <a href="./">The live page</a> shows the blocks.</p>
{paths}
</main>
</body>
</html>
"""


def reference_page(schema: dict[str, Any]) -> str:
    """Return the page as HTML.

    Args:
        schema: of the server, in the form of OpenAPI.
    """
    parts = []
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            parts.append(_operation(schema, path, method, operation))
    return PAGE.format(paths="\n".join(parts))


def _operation(schema: dict[str, Any], path: str, method: str, operation: dict[str, Any]) -> str:
    text = escape(operation.get("description", operation.get("summary", "")))
    part = f"<h2>{method.upper()} {escape(path)}</h2>\n<p>{text}</p>"
    types = schema["components"]["schemas"]
    parameters = {each["name"]: _parameter(each) for each in operation.get("parameters", [])}
    required = [each["name"] for each in operation.get("parameters", []) if each["required"]]
    part += _table("parameter", {"properties": parameters, "required": required}, types)
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    reference = content.get("schema", {}).get("$ref")
    if reference is not None:
        name = reference.rpartition("/")[2]
        part += _table("field", types[name], types) + _other_fields()
    return part


def _parameter(parameter: dict[str, Any]) -> dict[str, Any]:
    """Return a parameter of a path as a field of an object has it."""
    return parameter["schema"] | {"description": parameter.get("description", "")}


def _table(kind: str, body: dict[str, Any], types: dict[str, Any]) -> str:
    """Return a table of fields; "" if there are none."""
    rows = "".join(_row(field) for field in fields_of(body, types))
    if not rows:
        return ""
    heads = "".join(
        f'<th scope="col">{head}</th>' for head in (kind, "accepted", "default", "meaning")
    )
    return f'\n<section tabindex="0"><table><tr>{heads}</tr>{rows}</table></section>'


def _row(field: Field) -> str:
    cells = "".join(
        f"<td>{escape(text)}</td>" for text in (field.accepted, field.default, field.meaning)
    )
    return f"<tr><td><code>{escape(field.name)}</code></td>{cells}</tr>"


def _other_fields() -> str:
    """Return a line about the fields that have no row of their own."""
    fields = []
    for field, values in UNSUPPORTED.items():
        written = " or ".join(json.dumps(value) for value in (*values, None))
        fields.append(f"<code>{escape(field)}</code> {escape(written)}")
    return (
        f"\n<p>Not supported, and accepted with these values only: {', '.join(fields)}. "
        "Any other field is ignored, and the server's log names it once.</p>"
    )
