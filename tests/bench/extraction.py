"""How many fields of a public extraction set come out right, with the schema in the prompt and without.

`python -m tests.bench.extraction LABELED.xml`, where the file holds labeled US addresses as the sdist of `usaddress`
has them (training/labeled.xml), against the orchestrator at PAGANTIC_ADDRESS.
"""

from __future__ import annotations

import argparse
import sys
import time
import xml.etree.ElementTree as ET
from collections import defaultdict

from pagantic.constraint.v1 import contract_pb2
from pagantic_common.client import Client, structured_request
from pagantic_common.domain.text.json_text import parse_json

FIELDS = {
    "number": ("the house number alone", ("AddressNumber",)),
    "street": (
        "the street's name with its direction and type, without the house number",
        ("StreetNamePreDirectional", "StreetNamePreType", "StreetName", "StreetNamePostType",
         "StreetNamePostDirectional"),
    ),
    "city": ("the city or place", ("PlaceName",)),
    "state": ("the two-letter code of the state", ("StateName",)),
    "zip": ("the postal code", ("ZipCode",)),
}  # fmt: skip
SCHEMA = {
    "type": "object",
    "properties": {name: {"type": "string", "description": text} for name, (text, _) in FIELDS.items()},
    "required": list(FIELDS),
    "additionalProperties": False,
}


def read(path: str, limit: int) -> list[tuple[str, dict[str, str]]]:
    """Return texts with their fields; an address that lacks one of them is left out."""
    found = []
    for address in ET.parse(path).getroot():  # noqa: S314 - a file that the user names
        parts: dict[str, list[str]] = defaultdict(list)
        words = []
        for token in address:
            words.append(f"{token.text or ''}{token.tail or ''}")
            parts[token.tag].append(token.text or "")
        fields = {
            name: " ".join(" ".join(parts[tag]) for tag in tags if parts[tag]) for name, (_, tags) in FIELDS.items()
        }
        if all(fields.values()):
            found.append(("".join(words).strip(), fields))
    return found[:limit]


def normal(text: object) -> str:
    """Return what is compared: letters and digits, in one case."""
    return " ".join("".join(c if c.isalnum() else " " for c in str(text).casefold()).split())


def out(line: str) -> None:
    """Write a line."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--limit", type=int, default=60)
    arguments = parser.parse_args()
    samples = read(arguments.data, arguments.limit)
    out(f"{len(samples)} addresses of {len(FIELDS)} fields")
    with Client() as client:
        for name in ("OFF", "ON"):
            right: dict[str, int] = defaultdict(int)
            prompt_tokens = cached = failed = 0
            started_s = time.monotonic()
            for text, fields in samples:
                request = structured_request(f"Take the parts of this address: {text}", SCHEMA, max_tokens=150)
                request.output.schema_in_prompt = contract_pb2.SchemaInPrompt.Value(f"SCHEMA_IN_PROMPT_{name}")
                response = client.execute(request)
                prompt_tokens += response.token_usage.prompt_tokens
                cached += response.token_usage.cached_prompt_tokens
                failed += response.HasField("error")
                answer = parse_json(response.structured_output_json or "{}")
                for field, value in fields.items():
                    right[field] += normal(answer.get(field)) == normal(value)
            total = sum(right.values())
            took_s = time.monotonic() - started_s
            out(
                f"schema_in_prompt {name:<4} right {total}/{len(samples) * len(FIELDS)} "
                f"= {total / (len(samples) * len(FIELDS)):.2f}  {dict(right)}  failed {failed}  "
                f"prompt tokens {prompt_tokens}, cached {cached}  {took_s / len(samples):.2f} s each"
            )


if __name__ == "__main__":
    main()
