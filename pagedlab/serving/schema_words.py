"""A JSON schema in words, for the page /docs: an object's fields, and the values of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any]
BIG = 1 << 31  # from here on, powers of two are written as powers


@dataclass
class Field:
    """A field of a request.

    Args:
        name: its name, with the fields around it, for instance "messages[].role".
        accepted: its type, with a range or the accepted values.
        default: its value where the request does not have it, or "required".
        meaning: one sentence.
    """

    name: str
    accepted: str
    default: str
    meaning: str


def fields_of(body: Schema, types: dict[str, Schema], path: str = "") -> Iterator[Field]:
    """Yield the fields of an object, each followed by the fields of the objects in it.

    Args:
        body: the schema of the object.
        types: the schemas that others refer to, by name.
        path: the names before a field's own.
    """
    required = body.get("required", [])
    for name, schema in body.get("properties", {}).items():
        default = json.dumps(schema["default"]) if "default" in schema else "none"
        meaning = " ".join(schema.get("description", "").split())
        field = Field(path + name, accepted(schema), default, meaning)
        if name in required:
            field.default = "required"
        yield field
        for inner_path, inner_name in _objects_in(schema, path + name):
            yield from fields_of(types[inner_name], types, f"{inner_path}.")


def accepted(schema: Schema) -> str:
    """Return the type of a value in words, with its range or the accepted values."""
    if "anyOf" in schema:
        forms = [form for form in schema["anyOf"] if form.get("type") != "null"]
        return ", or ".join(accepted(form) for form in forms)
    if "$ref" in schema:
        return "object"
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return "one of " + ", ".join(json.dumps(value) for value in schema["enum"])
    in_words = WORDS.get(schema.get("type", ""))
    return in_words(schema) if in_words else "anything"


def _objects_in(schema: Schema, path: str) -> Iterator[tuple[str, str]]:
    """Yield the path and the name of each object that a value may be or have as an element."""
    for form in schema.get("anyOf", [schema]):
        if "$ref" in form:
            yield path, form["$ref"].rpartition("/")[2]
        elif "items" in form:
            yield from _objects_in(form["items"], f"{path}[]")


def _boolean(schema: Schema) -> str:
    return "true or false"


def _integer(schema: Schema) -> str:
    return "whole number" + _range(schema)


def _number(schema: Schema) -> str:
    return "number" + _range(schema)


def _string(schema: Schema) -> str:
    count = _count(schema.get("minLength", 0), schema.get("maxLength"), "character")
    return f"text ({count})" if count else "text"


def _array(schema: Schema) -> str:
    if schema.get("maxItems") == 0:
        return "empty list"
    count = _count(schema.get("minItems", 0), schema.get("maxItems"), "element")
    size = f" ({count})" if count else ""
    return f"list{size} of: {accepted(schema['items'])}"


def _object(schema: Schema) -> str:
    count = _count(0, schema.get("maxProperties"), "entry")
    size = f" ({count})" if count else ""
    return f"object{size} of: {accepted(schema.get('additionalProperties', {}))}"


WORDS = {
    "boolean": _boolean,
    "integer": _integer,
    "number": _number,
    "string": _string,
    "array": _array,
    "object": _object,
}


def _range(schema: Schema) -> str:
    """Return the range of a number, with a space before it."""
    if "minimum" in schema and "maximum" in schema:
        return f" from {_short(schema['minimum'])} to {_short(schema['maximum'])}"
    limits = {
        "minimum": "of at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    named = [f"{words} {_short(schema[key])}" for key, words in limits.items() if key in schema]
    return " " + " and ".join(named) if named else ""


def _short(number: float) -> str:
    if number != int(number):
        return str(number)
    whole = int(number)  # in the form of OpenAPI, a limit may be a float
    if whole >= BIG and whole.bit_count() == 1:
        return f"2^{whole.bit_length() - 1}"
    return str(whole)


def _count(least: int, most: int | None, noun: str) -> str:
    """Return how many parts a value may have, for instance "1 to 16 elements"; "" for any number.

    Args:
        least: the smallest number.
        most: the largest number; None for no limit.
        noun: the name of one part.
    """
    nouns = f"{noun.removesuffix('y')}ies" if noun.endswith("y") else f"{noun}s"
    if most is None:
        return f"{least} or more {nouns}" if least else ""
    return f"{least} to {most} {nouns}" if least else f"at most {most} {nouns}"
