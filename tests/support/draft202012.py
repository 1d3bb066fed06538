"""The judge of JSON Schema that is independent of the services: the library jsonschema."""


def validator_of(schema):
    """Return a validator of Draft 2020-12."""
    # Every worker imports every test, and this import compiles grammars for seconds.
    from jsonschema import Draft202012Validator  # noqa: PLC0415

    return Draft202012Validator(schema)
