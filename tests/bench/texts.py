"""Words and sentences that the scenarios put prompts together from, and the schema of the schema scenario."""

from __future__ import annotations

from random import Random
from typing import Any

NAMES = (
    "Amara",
    "Bjorn",
    "Chiyo",
    "Dmitri",
    "Elif",
    "Farouk",
    "Greta",
    "Hiro",
    "Ines",
    "Jamal",
    "Katya",
    "Liam",
    "Mireille",
    "Nuno",
    "Olga",
    "Priya",
    "Quentin",
    "Rosa",
    "Stefan",
    "Tamsin",
    "Umar",
    "Vera",
    "Wanda",
    "Yusuf",
)
CITIES = (
    "Accra",
    "Bergen",
    "Cusco",
    "Dakar",
    "Esbjerg",
    "Fukuoka",
    "Galway",
    "Hanoi",
    "Izmir",
    "Jaipur",
    "Kigali",
    "Lima",
    "Malmo",
    "Nairobi",
    "Oslo",
    "Porto",
    "Quito",
    "Riga",
    "Split",
    "Tartu",
    "Utrecht",
    "Varna",
    "Zadar",
)
TOPICS = (
    "how tides work",
    "why bread rises",
    "what a notary does",
    "how to tune a guitar",
    "why leaves turn red",
    "how a lock opens a canal",
    "what makes steel hard",
    "how bees find home",
    "why ice floats",
    "how glass is made",
    "how to prune roses",
    "what a sextant measures",
    "how radio waves bend",
    "why the sky is blue",
)
QUESTIONS = (
    "My parcel is late; what now?",
    "Can I return a lamp that I used once?",
    "How do I change my address?",
    "Which card can I pay with?",
    "Do you ship to an island?",
    "The box was open; who pays?",
    "Where is my receipt?",
    "How long do you keep my data?",
    "Can a friend fetch my order?",
    "What if nobody is at home?",
)
FAULTS = (
    "the login page answers with status 500",
    "the nightly backup did not start",
    "the mail queue keeps growing",
    "disk usage on the database host is at 97 percent",
    "a certificate ran out this morning",
    "the search index is two days old",
    "half of the sensors in hall 4 are silent",
    "payments are booked twice",
)

# About 600 tokens with its opening line.
HANDBOOK = """You answer for a shop that sells household goods by mail. Follow these rules in every answer.
1. Greet the customer once, by name when the name is known, and never twice in one conversation.
2. Answer the question that was asked before you offer anything else, and answer it in plain words.
3. Parcels leave the warehouse on the next working day when the order came in before two in the afternoon.
4. Delivery takes two to four working days inside the country and six to nine days to islands and abroad.
5. A parcel that has not moved for five working days counts as lost; offer a new parcel or the money back.
6. Goods may be returned within thirty days, used or not, as long as nothing is broken and no part is missing.
7. The customer pays for the return unless the goods were damaged, wrong, or not what the page had promised.
8. Money goes back the way it came, within three working days after the goods have reached the warehouse.
9. Cards, bank transfers and invoices are accepted; cheques, cash in letters and gift cards of others are not.
10. An address can be changed until the parcel has left; after that only the carrier can send it elsewhere.
11. A neighbour or a friend may take the parcel when the customer has said so in writing before it is sent.
12. When the box was open on arrival, ask for two photographs and promise an answer within one working day.
13. Never promise a discount; a voucher of five may be offered once, after a mistake that was ours.
14. Never ask for a password, a card number or a date of birth; if one is sent, ask the customer to change it.
15. Personal data is kept for ten years where the law asks for it and for six months where it does not.
16. If the customer is angry, say what will happen next and when, and do not explain whose fault it was.
17. If a question is about health, law or taxes, say that you cannot advise on it and name who can.
18. If you do not know, say so, and say that a colleague will write before the end of the next working day.
19. Write short paragraphs, no lists, no capitals for stress, no emoticons, and no more than eighty words.
20. End with one sentence that tells the customer what to do now, or that there is nothing left to do."""

INCIDENT = """You sort incident reports of a railway operator. Read the report and answer with exactly one word: minor
when no train is delayed, major when trains are delayed but nobody is in danger, critical when somebody may be
hurt."""
REPORT = """Report: at 06:40 the points at the northern end of platform 3 did not lock. The signaller held two trains
outside the station for eleven minutes while a technician cleaned the contacts. Passengers on the platform were told
to stand back. No one was hurt and service was back to normal at 07:05. Your one word:"""

TICKET_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "minLength": 5, "maxLength": 40},
        "severity": {"enum": ["low", "medium", "high", "critical"]},
        "component": {"enum": ["network", "storage", "database", "frontend", "billing"]},
        "reporter": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 2, "maxLength": 20},
                "team": {"enum": ["operations", "support", "engineering"]},
                "is_on_call": {"type": "boolean"},
            },
            "required": ["name", "team", "is_on_call"],
            "additionalProperties": False,
        },
        "impact": {
            "type": "object",
            "properties": {
                "affected_users": {"type": "integer", "minimum": 0, "maximum": 100000},
                "is_data_lost": {"type": "boolean"},
            },
            "required": ["affected_users", "is_data_lost"],
            "additionalProperties": False,
        },
        "steps": {
            "type": "array",
            "minItems": 2,
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {
                    "action": {"type": "string", "minLength": 5, "maxLength": 40},
                    "owner": {"enum": ["operations", "support", "engineering"]},
                    "minutes": {"type": "integer", "minimum": 1, "maximum": 240},
                },
                "required": ["action", "owner", "minutes"],
                "additionalProperties": False,
            },
        },
        "labels": {
            "type": "array",
            "minItems": 1,
            "maxItems": 3,
            "items": {"enum": ["outage", "security", "capacity", "regression", "hardware"]},
        },
    },
    "required": ["title", "severity", "component", "reporter", "impact", "steps", "labels"],
    "additionalProperties": False,
}


def opening(random: Random) -> str:
    """Return a few words that no other prompt begins with."""
    return f"{random.choice(NAMES)} {random.choice(CITIES)} {random.randrange(10**6)}"


def passage(random: Random) -> str:
    """Return about 170 tokens: rules of the handbook in an order of their own, so that they can only be quoted."""
    rules = [line.partition(". ")[2] for line in HANDBOOK.splitlines()[1:]]
    return " ".join(random.sample(rules, 8))


def words_of(source: Random, tokens: int) -> str:
    """Return about so many tokens of text; a name, a number and a city have 8.6 of them."""
    count = max(1, round(tokens / 8.6)) if tokens else 0
    return " ".join(f"{source.choice(NAMES)} {source.randrange(1000)} {source.choice(CITIES)}" for _ in range(count))
