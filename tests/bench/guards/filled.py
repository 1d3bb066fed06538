"""presidio-evaluator's sentences, filled with the data of Faker, and where the data stands."""

import re
import subprocess
import sys

FAKER = "faker==37.12.0"
LOCALES = ("en_US", "en_GB", "de_DE", "fr_FR")
# The placeholders with data that has a form, and Faker's name of each.
FORMS = {
    "credit_card_number": "credit_card_number",
    "email": "email",
    "iban": "iban",
    "ip_address": "ipv4",
    "phone_number": "phone_number",
    "ssn": "",
}
OTHERS = {"person": "name", "organization": "company", "age": "random_digit"}
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def filled(templates, folder, rounds=4):
    """Return (text, spans of data with a form, by placeholder) of each sentence, `rounds` times."""
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", str(folder / "faker"), FAKER], check=True)
    sys.path.insert(0, str(folder / "faker"))
    from faker import Faker  # noqa: PLC0415 - installed just now

    Faker.seed(1)
    fakers = [Faker(LOCALES[number % len(LOCALES)]) for number in range(rounds)]
    return [_fill(template, faker) for faker in fakers for template in templates]


def _fill(template, faker):
    text, spans, at = "", [], 0
    for place in _PLACE.finditer(template):
        text += template[at : place.start()]
        value = _value(place[1], faker)
        if place[1] in FORMS:
            spans.append((len(text), len(text) + len(value), place[1]))
        text += value
        at = place.end()
    return text + template[at:], spans


def _value(name, faker):
    if name == "ssn":  # The guard knows the form of the United States by default.
        return _us_ssn(faker)
    wanted = FORMS.get(name) or OTHERS.get(name) or name
    provide = getattr(faker, wanted, None)
    return str(provide()) if provide is not None else faker.word()


def _us_ssn(faker):
    return f"{faker.random_int(100, 665)}-{faker.random_int(10, 99)}-{faker.random_int(1000, 9999)}"
