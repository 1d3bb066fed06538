"""Inputs that mean harm, the rpc that takes each, and the code that answers it; OK is a normal reply.

A schema that only looks dangerous is answered as any other.
"""

import json

from pagantic.constraint.v1 import constraint_service_pb2 as rpc
from pagantic.constraint.v1 import contract_pb2

OK, CONFIG, GRAMMAR, COMPLEX = "OK", "CONFIG_INVALID", "CONSTRAINT_GRAMMAR_INVALID", "CONSTRAINT_TOO_COMPLEX"


def nested(opening, depth, inner="{}", closing="}"):
    return opening * depth + inner + closing * depth


def chained(rule, links):
    """Rules each of which is the next one repeated."""
    lines = [f"r{number} ::= {rule.format(f'r{number + 1}')}" for number in range(links)]
    return "\n".join(["root ::= r0", *lines, f'r{links} ::= "a"'])


SCHEMAS = {
    "not nested 65 deep": (nested('{"not":', 65), COMPLEX),
    "not nested 10000 deep": (nested('{"not":', 10_000), COMPLEX),
    "items nested 1000 deep": (nested('{"items":', 1000), COMPLEX),
    "properties nested 100 deep": (nested('{"properties":{"a":', 100, closing="}}"), COMPLEX),
    "arrays nested 40000 deep": ("[" * 40_000 + "]" * 40_000, COMPLEX),
    "allOf nested 60 deep, never closed": ('{"allOf":[' * 30, CONFIG),
    "10000 enum values": ({"enum": [f"value {number}" for number in range(10_000)]}, OK),
    "50000 enum values": ({"enum": [f"value {number}" for number in range(50_000)]}, COMPLEX),
    "an enum value of 200000 characters": ({"enum": ["x" * 200_000]}, OK),
    "maxLength 65535": ({"type": "string", "maxLength": 65535}, OK),
    "minLength and maxLength 65535": ({"type": "string", "minLength": 65535, "maxLength": 65535}, OK),
    "maxLength 10^18": ({"type": "string", "maxLength": 10**18}, OK),
    "maxLength 10^30": ({"type": "string", "maxLength": 10**30}, OK),
    "minLength beyond maxLength": ({"type": "string", "minLength": 2, "maxLength": 1}, CONFIG),
    "pattern with maxLength": ({"type": "string", "pattern": "^(a|b)*c{1,500}$", "maxLength": 60000}, OK),
    "maxItems 65535": ({"type": "array", "items": {"type": "integer"}, "maxItems": 65535}, OK),
    "minItems 1000000": ({"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000}, OK),
    "maxItems of maxItems": (
        {"type": "array", "maxItems": 1000, "items": {"type": "array", "maxItems": 1000, "items": {"maxItems": 1000}}},
        OK,
    ),
    "$ref to itself": ({"$ref": "#"}, OK),
    "$defs that name each other": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        OK,
    ),
    "allOf of itself": ({"allOf": [{"$ref": "#"}]}, OK),
    "anyOf of itself twice": ({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, OK),
    "not itself": ({"not": {"$ref": "#"}}, OK),
    "if itself": ({"if": {"$ref": "#"}, "then": {"$ref": "#"}}, OK),
    "a tree without end": ({"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}, OK),
    "$dynamicRef to itself": ({"$dynamicAnchor": "x", "$dynamicRef": "#x"}, OK),
    "$ref to nothing": ({"$ref": "#/$defs/none"}, CONFIG),
    "$ref to a file": ({"$ref": "file:///etc/passwd"}, CONFIG),
    "$ref to a server": ({"$ref": "http://127.0.0.1:1/x.json"}, CONFIG),
    "$schema of a server": ({"$schema": "http://127.0.0.1:1/x.json"}, OK),
    "$id of a server and a relative $ref": ({"$id": "http://127.0.0.1:1/", "$ref": "x.json"}, CONFIG),
    "pattern (a+)+$": ({"type": "string", "pattern": "^(a+)+$"}, OK),
    "pattern (a|aa)+": ({"type": "string", "pattern": "^(a|aa)+$"}, OK),
    "pattern of repeated repeats": ({"type": "string", "pattern": "^((a{1,100}){1,100}){1,100}$"}, COMPLEX),
    "pattern a{100000}": ({"type": "string", "pattern": "^a{100000}$"}, OK),
    "pattern .{1,1000}.{1,1000}": ({"type": "string", "pattern": "^.{1,1000}x.{1,1000}y.{1,1000}$"}, OK),
    "pattern with classes": ({"type": "string", "pattern": r"^[\p{L}\p{N}\p{Z}]{1,1000}$"}, COMPLEX),
    "pattern with look-ahead": ({"type": "string", "pattern": "^(?=.*a)b"}, CONFIG),
    "pattern with a back-reference": ({"type": "string", "pattern": r"^(a)\1$"}, CONFIG),
    "pattern that is none": ({"type": "string", "pattern": "["}, CONFIG),
    "pattern of 100000 characters": ({"type": "string", "pattern": "a?" * 50_000}, OK),
    "1000 patternProperties": ({"patternProperties": {f"^(a+)+{number}$": {} for number in range(1000)}}, COMPLEX),
    "allOf of anyOf, 2^20 ways": (
        {"allOf": [{"anyOf": [{"required": [f"a{n}"]}, {"required": [f"b{n}"]}]} for n in range(20)]},
        OK,
    ),
    "allOf of oneOf with properties": (
        {"allOf": [{"oneOf": [{"properties": {f"p{n}": {"const": m}}} for m in range(4)]} for n in range(10)]},
        OK,
    ),
    "oneOf of 1000 objects": (
        {"oneOf": [{"properties": {"kind": {"const": number}}, "required": ["kind"]} for number in range(1000)]},
        OK,
    ),
    "5000 required names": ({"type": "object", "required": [f"name {number}" for number in range(5000)]}, OK),
    "1000 properties": ({"type": "object", "properties": {f"p{number}": {} for number in range(1000)}}, OK),
    "uniqueItems of anything": ({"uniqueItems": True, "minItems": 1000}, OK),
    "multipleOf 1e-300": ({"type": "number", "multipleOf": 1e-300}, OK),
    "minimum 1e400": ('{"minimum": 1e400}', CONFIG),
    "multipleOf of co-primes": (
        {"type": "integer", "allOf": [{"multipleOf": p} for p in (999_983, 999_979, 999_961)]},
        OK,
    ),
    "no JSON": ("{", CONFIG),
    "NaN": ('{"minimum": NaN}', CONFIG),
    "a lone surrogate": (r'{"const": "\ud800"}', CONFIG),
    "a number of 100000 digits": ('{"const": ' + "9" * 100_000 + "}", CONFIG),
    "a list": ("[]", CONFIG),
    "a type that is none": ({"type": "strin"}, CONFIG),
    "x-guidance options": ({"x-guidance": {"whitespace_pattern": ".*"}, "type": "null"}, OK),
    "unevaluated of itself": ({"unevaluatedProperties": {"$ref": "#"}, "properties": {"a": {"$ref": "#"}}}, OK),
    "format that is unknown": ({"type": "string", "format": "no-such-format"}, OK),
    "300000 bytes of description": ({"description": "x" * 300_000}, COMPLEX),
}
GRAMMARS = {
    "left recursion": ('root ::= root "a" | "a"', GRAMMAR),
    "left recursion over three rules": ('root ::= a\na ::= b "x"\nb ::= c?  a\nc ::= "c"', GRAMMAR),
    "left recursion behind an empty rule": ('root ::= e root "a"\ne ::= ""', GRAMMAR),
    "a rule of itself": ("root ::= root", GRAMMAR),
    "no root": ('rootRule ::= "a"', GRAMMAR),
    "an undefined rule": ("root ::= nothing", GRAMMAR),
    "an open group": ('root ::= ("a"', GRAMMAR),
    "an open string": ('root ::= "a', GRAMMAR),
    "an open class": ("root ::= [a", GRAMMAR),
    "a reversed range": ("root ::= [z-a]", GRAMMAR),
    "groups 10000 deep": ("root ::= " + "(" * 10_000 + '"a"' + ")" * 10_000, GRAMMAR),
    "repeats of repeats": ('root ::= "a"' + "{1000}" * 50, GRAMMAR),
    "ten million repetitions": ('root ::= "a"{10000000}', GRAMMAR),
    "a chain of repeats": (chained("{}{{1000}}", 20), OK),
    "a chain of doublings": (chained("{0} {0}", 60), OK),
    "stars of stars": ('root ::= (("a"*)*)*', OK),
    "a token literal": ("root ::= <think>", GRAMMAR),
    "20000 rules": (
        "root ::= r0\n" + "\n".join(f'r{n} ::= "a" r{n + 1}' for n in range(10_000)) + '\nr10000 ::= "b"',
        OK,
    ),
    "20000 alternatives": ("root ::= " + " | ".join(f'"w{n}"' for n in range(20_000)), COMPLEX),
    "300000 bytes": ("# " + "x" * 300_000 + '\nroot ::= "a"', COMPLEX),
    "nothing": ("", GRAMMAR),
    "a rule that never ends": ('root ::= "a" root', OK),
}
AMBIGUOUS = 'root ::= s\ns ::= "a" | "a" s | "a" s s'
PATTERNS = {
    "(a+)+": ("(a+)+", OK),
    "((a{1,200}){1,200}){1,200}": ("((a{1,200}){1,200}){1,200}", OK),
    "look-behind": ("(?<=a)b", GRAMMAR),
    "[": ("[", GRAMMAR),
}
RULES = {
    "a loop in a loop in a loop": "value.all(a, value.all(b, value.all(c, a != 0 || b != 0 || c == c)))",
    "brackets 5000 deep": "(" * 2000 + "true" + ")" * 2000,
    "an expression of 5000 characters": "true" + " && true" * 700,
    "an endless text": " + ".join(["output"] * 400) + " != ''",
}


def compile_requests():
    """Yield name, request and code of every source."""
    for name, (schema, code) in SCHEMAS.items():
        text = schema if isinstance(schema, str) else json.dumps(schema)
        yield f"schema: {name}", rpc.CompileRequest(schema_json=text), code
    for name, (grammar, code) in GRAMMARS.items():
        yield f"grammar: {name}", rpc.CompileRequest(grammar=grammar), code
    for name, (pattern, code) in PATTERNS.items():
        yield f"pattern: {name}", rpc.CompileRequest(regex=pattern), code


def rule(expression):
    return contract_pb2.Rule(name="hostile", expression=expression)


def other_requests():
    """Yield name, rpc, request and code of what is no source; OK also where the reply says that it is not valid."""
    big = json.dumps(list(range(3000)))
    for name, expression in RULES.items():
        yield f"rule: {name}", "ValidateRules", rpc.ValidateRulesRequest(output=big, rules=[rule(expression)]), None
    for name, text in {
        "arrays 500000 deep": "[" * 500_000,
        "objects 200000 deep": '{"a":' * 180_000,
        "a number of 900000 digits": "9" * 900_000,
        "1e999999": "1e999999",
        "900000 quotes": '"' * 900_000,
        "900000 backslashes": '"' + "\\" * 900_000,
        "braces in prose": "{ [ " * 200_000,
        "comments that never end": "/*" * 400_000,
    }.items():
        yield f"text: {name}", "RepairJson", rpc.RepairJsonRequest(text=text), OK
        yield (
            f"document: {name}",
            "ValidateSchema",
            rpc.ValidateSchemaRequest(document_json=text, schema_json='{"type": "object"}'),
            OK,
        )
    yield (
        "text: an ambiguous grammar",
        "ValidateGrammar",
        rpc.ValidateGrammarRequest(grammar=AMBIGUOUS, text="a" * 20_000),
        COMPLEX,
    )
    yield (
        "document: pattern (a+)+$ and 500000 characters",
        "ValidateSchema",
        rpc.ValidateSchemaRequest(document_json=json.dumps("a" * 500_000 + "!"), schema_json='{"pattern": "^(a+)+$"}'),
        OK,
    )
    yield (
        "document: uniqueItems over 50000 objects",
        "ValidateSchema",
        rpc.ValidateSchemaRequest(
            document_json=json.dumps([{"n": n} for n in range(50_000)]), schema_json='{"uniqueItems": true}'
        ),
        None,
    )
    yield "document: 2 MB", "RepairJson", rpc.RepairJsonRequest(text="x" * 2_000_000), COMPLEX
