"""Plans for the corpus: what the generator is asked to write, and the hand-written text that it starts from.

Reads the hand-written files in source/. A `Plan` is one thing to write:
its hand-written source, what a reader could ask to get it, and the names in it, so that questions can be asked later.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).parent / "source"
OPENINGS = (
    "Once upon a time, there was {a_hero}. {He} lived {near}.",
    "Once upon a time, {a_hero} lived {near}.",
    "Once upon a time, {near}, there lived {a_hero}.",
    "{Hero} was {a_hero_only}. {He} lived {near}.",
    "Long ago, {a_hero} lived {near}.",
    "There once was {a_hero}, who lived {near}.",
    "This is the story of {a_hero}. {He} lived {near}.",
    "{Near} lived {a_hero}.",
)


@dataclass
class Plan:
    """One text to be written. `names` holds words that a question can ask for, such as the hero's name."""

    kind: str
    source: str
    asks: list[str]
    prompt: str = ""
    prefix: str = ""  # the generator's answer begins with this
    names: dict[str, str] = field(default_factory=dict)


def read(name: str) -> list[str]:
    """Lines of a file in source/, without comments."""
    lines = (SOURCE / name).read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def read_sections(name: str) -> list[tuple[str, list[str]]]:
    """Sections that begin with '== title', as (title, lines)."""
    sections: list[tuple[str, list[str]]] = []
    for line in read(name):
        if line.startswith("=="):
            sections.append((line[2:].strip(), []))
        else:
            sections[-1][1].append(line)
    return sections


def read_table(name: str) -> list[list[str]]:
    """Lines with cells between |."""
    return [[cell.strip() for cell in line.split("|")] for line in read(name)]


def read_words() -> dict[str, list[str]]:
    """The word lists by name."""
    pairs = (line.split(": ", 1) for line in read("words.txt"))
    return {name: text.split("|" if "|" in text else None) for name, text in pairs}


WORDS = read_words()
PLACES, FACTS, THINGS, TALK, NOTES = (
    read_table(f"{name}.txt") for name in ("places", "facts", "things", "talk", "notes")
)
REASONS = {row[0]: row[3] for row in FACTS if len(row) > 3}
STORIES, SCENES = read_sections("stories.txt"), read_sections("scenes.txt")
ALL_NAMES = WORDS["women"] + WORDS["men"]


def article(noun: str) -> str:
    """The noun phrase with "a" or "an"."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def capital(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def fill(line: str, rng: random.Random, slots: dict[str, str]) -> str:
    """Make the choices [a|b] of a line and fill in its slots."""
    line = re.sub(r"\[([^\]]*)\]", lambda m: rng.choice(m[1].split("|")), line)
    return re.sub(r"\{(\w+)\}", lambda m: fill(slots[m[1]], rng, slots), line)


def character(rng: random.Random, taken: str = "") -> dict[str, str]:
    """A random name, kind and pronouns."""
    if rng.random() < 0.6:
        kind, look, gender = (
            rng.choice(WORDS["animals"]),
            rng.choice(WORDS["adjectives"] + WORDS["fur"]),
            rng.choice("fm"),
        )
    else:
        kind, _, gender = rng.choice(WORDS["people"]).partition(":")
        gender = gender or rng.choice("fm")
        age_is_known = kind in ("boy", "girl", "grandmother", "grandfather")
        look = rng.choice(
            [
                word
                for word in WORDS["adjectives"]
                if not (age_is_known and word in ("old", "young"))
            ]
        )
    name = rng.choice([n for n in WORDS["women" if gender == "f" else "men"] if n != taken])
    noun = f"{look} {kind}" if rng.random() < 0.6 else kind
    he, him, his = ("she", "her", "her") if gender == "f" else ("he", "him", "his")
    return {"name": name, "kind": kind, "noun": noun, "he": he, "him": him, "his": his}


def story(rng: random.Random) -> Plan:
    """A story from one of the plans, with a random hero, friend, place and thing."""
    _, lines = rng.choice(STORIES)
    hero = character(rng)
    friend = character(rng, hero["name"])
    while friend["kind"] == hero["kind"]:
        friend = character(rng, hero["name"])
    place, where, near, keeper, spots, smell = rng.choice(PLACES)
    while keeper.split()[-1] in (hero["kind"], friend["kind"]):
        place, where, near, keeper, spots, smell = rng.choice(PLACES)
    spot = rng.choice(spots.split(";"))
    a_thing, thing = rng.choice(WORDS["finds"]).split(":")
    slots = {
        "OPEN": rng.choice(OPENINGS),
        "Hero": hero["name"],
        "a_hero": f"{article(hero['noun'])} named {hero['name']}",
        "a_hero_only": article(hero["noun"]),
        "friend": friend["name"],
        "a_friend": article(friend["noun"]),
        "in_place": where,
        "near": near,
        "Near": capital(near),
        "keeper": keeper,
        "Keeper": capital(keeper),
        "spot": spot,
        "Spot": capital(spot),
        "smell": smell,
        "a_thing": article(a_thing),
        "thing": thing,
        "food": rng.choice(WORDS["meals"]),
        "weather": rng.choice(WORDS["weather"]),
    }
    for who, prefix in ((hero, ""), (friend, "f")):
        for word in ("he", "him", "his"):
            slots[prefix + word] = who[word]
            slots[prefix + capital(word)] = capital(who[word])
    sentences: list[str] = []
    for line in lines:
        if not line.startswith("?") or rng.random() < 0.5:
            sentences.append(fill(line.lstrip("?"), rng, slots))
    half = len(sentences) // 2
    source = " ".join(sentences[:half]) + rng.choice(["\n\n", " "]) + " ".join(sentences[half:])
    a, b = article(hero["kind"]), article(friend["kind"])
    about = [a, a, f"{a} named {hero['name']}", f"{a} and {b}"]
    about += [f"{a} and {article(noun)}" for noun in (place, place, thing) if noun in source]
    asks = [
        f"{verb} {rng.choice(about)}{end}"
        for verb, end in (
            ("Tell me a story about", "."),
            ("Tell me a story about", "."),
            ("Write a short story about", "."),
            ("Please tell me a short story about", "."),
            ("Can you tell me a story about", "?"),
            ("I would like to hear a story about", "."),
            ("Write a story for children about", "."),
        )
    ] + ["Tell me a story.", "Tell me a short story, please."]
    names = {
        "hero": hero["name"],
        "hero_kind": hero["kind"],
        "friend": friend["name"],
        "friend_kind": friend["kind"],
    }
    return Plan("story", source, asks, names=names)


def asks_for(question: str, indirect: str) -> list[str]:
    """Ways to ask one question."""
    asks = [question] * 6 + [
        f"Explain {indirect}.",
        f"Explain {indirect}.",
        f"Can you explain {indirect}?",
        f"Please tell me {indirect}.",
        f"Tell me {indirect}.",
        f"I would like to know {indirect}.",
        f"Explain to a child {indirect}.",
        f"Can you tell me {indirect}?",
        f"Hello! {question}",
        f"I have a question. {question}",
        f"{question} Please explain it in plain words.",
        f"{question} Answer in a few sentences.",
    ]
    noun = re.fullmatch(r"What is (.+)\?", question)
    if noun:
        asks += [
            f"Explain {noun[1]}.",
            f"Tell me about {noun[1]}.",
            f"Describe {noun[1]}.",
            f"Explain {noun[1]} to a child.",
        ]
        asks += [f"What do you know about {noun[1]}?"]
    howto = re.fullmatch(r"How do I (.+)\?", question)
    if howto:
        asks += [
            f"How can I {howto[1]}?",
            f"Show me how to {howto[1]}.",
            f"I want to {howto[1]}. How do I do that?",
        ]
    return asks


def fact(rng: random.Random) -> Plan:
    """A question and its answer."""
    question, indirect, source = rng.choice(FACTS)[:3]
    return Plan("fact", source, asks_for(question, indirect), names={"opening": opening(indirect)})


def opening(indirect: str) -> str:
    """How an answer can begin that says the question again: "The sky is blue because", "Bees make honey by"."""
    word, rest = indirect.split(" ", 1)
    return (
        f"{capital(rest)} {'because' if word == 'why' else 'by'}"
        if word in ("why", "how") and rest[:3] != "to "
        else ""
    )


def thing(rng: random.Random) -> Plan:
    """A description of an everyday thing."""
    noun, what, look, use = rng.choice(THINGS)
    parts = [f"{capital(noun)} is {what}.", look, use]
    asks = asks_for(f"What is {noun}?", f"what {noun} is")
    asks += [f"Write a few sentences about {noun}.", f"What does {noun} look like?"]
    return Plan("thing", " ".join(parts), asks)


def scene(rng: random.Random) -> Plan:
    """A short description of a time or a place."""
    title, lines = rng.choice(SCENES)
    when = title[0].lower() + title[1:]
    what = {"At": "a place or a time", "In": "a time or a place", "By": "a place"}[title.split()[0]]
    asks = [
        f"Describe what you see {when}.",
        f"What happens {when}?",
        f"Describe {what}: {when}.",
        f"Write a scene {when}.",
    ]
    asks += [f"Tell me what it is like {when}.", f"Write a short text about life {when}."]
    if when == "in the memory of a computer":
        asks = [
            "Tell me about the memory of a computer.",
            "How does the memory of a computer work?",
            "Describe the memory of a computer.",
        ]
    return Plan("scene", " ".join(fill(line, rng, {}) for line in lines), asks)


def talk(rng: random.Random) -> Plan:
    """Two people talk, and one explains something to the other."""
    question, indirect, source = rng.choice(FACTS)[:3]
    a, b = rng.sample(ALL_NAMES, 2)
    asks = [
        f"Write a short talk between {a} and {b} in which {b} explains {indirect}.",
        f"Let {a} and {b} talk about this: {question}",
        f"Write a short talk between {a} and {b} about this: {question}",
    ]
    noun = re.fullmatch(r"What is (.+)\?", question)
    if noun:
        asks += [f"Write a short talk between {a} and {b} about {noun[1]}."] * 2
    return Plan("talk", source, asks, prefix=f"{a}: {question}\n{b}:", names={"a": a, "b": b})


def note(rng: random.Random) -> Plan:
    """A paragraph about memory."""
    about, source = rng.choice(NOTES)
    return Plan(
        "note",
        source,
        [f"Tell me something about {about}.", f"Write a few sentences about {about}."],
    )


def small_talk(rng: random.Random) -> Plan:
    """A greeting, a thank-you, a short question, and a reply."""
    asks, *answers = rng.choice(TALK)
    return Plan("small talk", rng.choice(answers), asks.split(";"))


def letter(rng: random.Random) -> Plan:
    """A letter about what somebody sees."""
    plan = scene(rng)
    a, b = rng.sample(ALL_NAMES, 2)
    asks = [
        f"Write a short letter from {a} to {b}.",
        f"Write a friendly letter to {b}. My name is {a}.",
    ]
    asks += [f"Help {a} to write a letter to {b}.", f"Write a letter to {b}."]
    if rng.random() < 0.25:
        relative = rng.choice(["grandmother", "grandfather", "mother", "father", "aunt", "uncle"])
        b, his = capital(relative), "her" if a in WORDS["women"] else "his"
        asks = [
            f"Write a letter from {a} to {his} {relative}.",
            f"Write a short letter to my {relative}. I am {a}.",
        ]
    greeting, news, goodbye, sign = (
        rng.choice(WORDS[name]) for name in ("greetings", "news", "goodbyes", "signs")
    )
    return Plan(
        "letter", f"Dear {b},\n\n{greeting} {news} {plan.source} {goodbye}\n\n{sign}\n{a}", asks
    )


def free(rng: random.Random) -> Plan:
    """A paragraph of which only the subject and the first words are given, for breadth."""
    x, y = rng.sample(WORDS["subjects"], 2)
    first = rng.choice(WORDS["openers"]).format(x=x, y=y)
    first = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", first)
    about = rng.choice([article(x), f"{article(x)} and {article(y)}"])
    if "{y}" not in first and y not in first:
        about = article(x)
    asks = [
        f"Write a few sentences about {about}.",
        f"Write a short text about {about}.",
        f"Tell me something about {about}.",
    ]
    return Plan("free", about, asks, prefix=first)


PROMPTS = {
    "story": (
        "Rewrite this as a short, warm story for children, in the past tense. Keep every event and add a few small "
        "details.",
        "Tell this story again in your own words, in easy words and short sentences. Keep the names and the order of "
        "the events.",
        "Rewrite this story and let the characters talk a little more. Keep the names and every event.",
    ),
    "fact": (
        "Rewrite this in other words, in a few plain sentences.",
        "Explain this to a child in a few short, friendly sentences. Use everything that is said.",
        "Say the same with short, easy words. Change the order of the words where you can.",
        "Sum this up in two short sentences.",
    ),
    "thing": (
        "Rewrite this in other words, in a few plain sentences.",
        "Write a short, friendly paragraph that says this, with one more detail.",
    ),
    "free": (
        "Write five short, simple sentences about this, as one paragraph:",
        "Tell a child something about this, in four or five easy sentences:",
    ),
    "scene": (
        "Rewrite this in other words. Keep it quiet and simple.",
        "Write this scene again with a few more small details, in plain words.",
    ),
    "talk": (
        "Write a short talk between {a} and {b}. {a} asks and {b} explains. Begin each line with the name. This is "
        "what {b} knows:",
    ),
}
MAKERS = {story: 13, fact: 44, thing: 8, scene: 5, talk: 10, free: 20}  # shares in per cent


def requests(seed: int) -> Iterator[Plan]:
    """Plans without end, each with the prompt for the generator; any beginning of the stream is balanced."""
    rng = random.Random(seed)
    makers, weights = list(MAKERS), list(MAKERS.values())
    while True:
        plan = rng.choices(makers, weights)[0](rng)
        plan.prompt = f"{rng.choice(PROMPTS[plan.kind]).format(**plan.names)}\n\n{plan.source}"
        if plan.kind in ("story", "thing", "fact", "scene") and rng.random() < 0.5:
            words = plan.source.split(" ")
            plan.prefix = " ".join(
                words[: rng.randint(2, 4)]
            )  # half of the answers begin as the source does
        if plan.names.get("opening") and rng.random() < 0.4:
            plan.prefix = plan.names["opening"]
        yield plan


if __name__ == "__main__":
    for number, plan in zip(range(12), requests(0), strict=False):
        print(f"{number}: {plan.prompt}\n-> {plan.prefix}\n{plan.asks[0]}\n")
