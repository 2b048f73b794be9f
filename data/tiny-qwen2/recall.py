"""Texts that can only be continued by looking back: facts that are given once and asked for later.

Everything here is made by rule from word lists. Between the facts and the questions other texts may stand, so
that the answer lies up to a few hundred tokens back.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from plans import ALL_NAMES, WORDS, article, capital

COLOURS, JOBS, TOWNS, PETS, FOODS, TOPICS, FURNITURE, NUMBERS = (
    WORDS[name]
    for name in ("colours", "jobs", "towns", "pets", "foods", "topics", "furniture", "numbers")
)


@dataclass
class Recall:
    """Facts in prose, and questions on them with their answers."""

    facts: list[str]
    questions: list[tuple[str, str]]

    def text(self) -> str:
        """The facts as one paragraph."""
        return " ".join(self.facts)


def colours(rng: random.Random) -> Recall:
    """The box is red. ... What colour is the box?"""
    things = rng.sample(FURNITURE, rng.randint(3, 9))
    pairs = [(thing, rng.choice(COLOURS)) for thing in things]
    facts = [f"The {thing} is {colour}." for thing, colour in pairs]
    questions = [
        (f"What colour is the {thing}?", f"The {thing} is {colour}.") for thing, colour in pairs
    ]
    return Recall(facts, questions)


def owners(rng: random.Random) -> Recall:
    """Anna has a drum. ... Who has the drum?"""
    count = rng.randint(3, 8)
    pairs = list(zip(rng.sample(ALL_NAMES, count), rng.sample(FURNITURE, count), strict=True))
    facts = [f"{name} has {article(thing)}." for name, thing in pairs]
    questions = [(f"Who has the {thing}?", f"{name} has the {thing}.") for name, thing in pairs]
    questions += [
        (f"What does {name} have?", f"{name} has {article(thing)}.") for name, thing in pairs
    ]
    return Recall(facts, questions)


def shelves(rng: random.Random) -> Recall:
    """The book about bees is on shelf nine. ... Where is the book about bees?"""
    count = rng.randint(3, 8)
    pairs = list(zip(rng.sample(TOPICS, count), rng.sample(NUMBERS, count), strict=True))
    facts = [f"The book about {topic} is on shelf {number}." for topic, number in pairs]
    questions = [
        (f"Where is the book about {topic}?", f"The book about {topic} is on shelf {number}.")
        for topic, number in pairs
    ]
    questions += [
        (f"Which book is on shelf {number}?", f"The book about {topic} is on shelf {number}.")
        for topic, number in pairs
    ]
    return Recall(facts, questions)


def blocks(rng: random.Random) -> Recall:
    """A block table in words."""
    count = rng.randint(3, 6)
    ids = rng.sample(NUMBERS, count)
    order = ["first", "second", "third", "fourth", "fifth", "sixth"][:count]
    facts = [f"The {o} part of the text is in block {b}." for o, b in zip(order, ids, strict=True)]
    questions = [
        (f"In which block is the {o} part of the text?", f"It is in block {b}.")
        for o, b in zip(order, ids, strict=True)
    ]
    return Recall(facts, questions)


def person(rng: random.Random) -> Recall:
    """A person with a job, a town, an animal and a taste."""
    gender = rng.choice("fm")
    name = rng.choice(WORDS["women" if gender == "f" else "men"])
    he, his = ("she", "her") if gender == "f" else ("he", "his")
    job, town, pet, food, colour = (
        rng.choice(words) for words in (JOBS, TOWNS, PETS, FOODS, COLOURS)
    )
    pet_name = rng.choice([n for n in ALL_NAMES if n != name])
    number = rng.choice(NUMBERS)
    said = [
        (f"{capital(he)} lives in {town}.", f"Where does {name} live?", f"{name} lives in {town}."),
        (
            f"{capital(he)} has {article(pet)} named {pet_name}.",
            f"What is the name of {name}'s {pet}?",
            f"The {pet} is named {pet_name}.",
        ),
        (
            f"{capital(he)} likes {food} best.",
            f"What does {name} like to eat?",
            f"{name} likes {food} best.",
        ),
        (
            f"{capital(his)} door is {colour}.",
            f"What colour is the door of {name}?",
            f"The door of {name} is {colour}.",
        ),
        (
            f"{capital(he)} lives in house number {number}.",
            f"What is the number of {name}'s house?",
            f"{capital(his)} house has the number {number}.",
        ),
    ]
    said = rng.sample(said, rng.randint(2, 5))
    facts = [f"{name} is {article(job)}."] + [fact for fact, _, _ in said]
    questions = [(f"What is the job of {name}?", f"{name} is {article(job)}.")] + [
        (q, a) for _, q, a in said
    ]
    return Recall(facts, questions)


def speaker(rng: random.Random) -> Recall:
    """What a user tells about himself or herself."""
    name, town, pet, colour = (rng.choice(words) for words in (ALL_NAMES, TOWNS, PETS, COLOURS))
    said = [
        (f"I live in {town}.", "Where do I live?", f"You live in {town}."),
        (f"I have {article(pet)}.", "Which animal do I have?", f"You have {article(pet)}."),
        (
            f"My favourite colour is {colour}.",
            "What is my favourite colour?",
            f"Your favourite colour is {colour}.",
        ),
    ]
    said = rng.sample(said, rng.randint(1, 3))
    questions = [("What is my name?", f"Your name is {name}.")] + [(q, a) for _, q, a in said]
    return Recall([f"My name is {name}."] + [fact for fact, _, _ in said], questions)


def house(rng: random.Random) -> Recall:
    """Rules of a house, as they stand in instructions for an assistant."""
    place = rng.choice(
        ["library", "bakery", "museum", "post office", "school", "market", "station", "theatre"]
    )
    opens, closes = (
        rng.choice(["six", "seven", "eight", "nine", "ten"]),
        rng.choice(["three", "four", "five", "six", "seven", "eight"]),
    )
    name, colour, number = rng.choice(ALL_NAMES), rng.choice(COLOURS), rng.choice(NUMBERS)
    said = [
        (
            f"The {place} opens at {opens}.",
            f"When does the {place} open?",
            f"The {place} opens at {opens}.",
        ),
        (
            f"It closes at {closes}.",
            f"When does the {place} close?",
            f"The {place} closes at {closes}.",
        ),
        (f"{name} works at the desk.", "Who works at the desk?", f"{name} works at the desk."),
        (
            f"The {colour} door is the entrance.",
            "Which door is the entrance?",
            f"The {colour} door is the entrance.",
        ),
        (
            f"Lost things are in room {number}.",
            "Where can I find a lost thing?",
            f"Lost things are in room {number}.",
        ),
    ]
    said = rng.sample(said, rng.randint(2, 5))
    return Recall(
        [f"You are the assistant of a {place}."] + [fact for fact, _, _ in said],
        [(q, a) for _, q, a in said],
    )


MAKERS: list[Callable[[random.Random], Recall]] = [colours, owners, shelves, blocks, person, person]


def any_recall(rng: random.Random) -> Recall:
    """Facts of a random kind."""
    return rng.choice(MAKERS)(rng)


def about_story(names: dict[str, str], rng: random.Random) -> list[tuple[str, str]]:
    """Questions on who is who in a story."""
    hero, friend = names["hero"], names["friend"]
    questions = [
        (
            f"What is the name of the {names['hero_kind']}?",
            f"The name of the {names['hero_kind']} is {hero}.",
        ),
        (
            f"What is the name of the {names['friend_kind']}?",
            f"The name of the {names['friend_kind']} is {friend}.",
        ),
        (f"Who is {friend}?", f"{friend} is {article(names['friend_kind'])}."),
        (f"Who is {hero}?", f"{hero} is {article(names['hero_kind'])}."),
    ]
    return rng.sample(questions, rng.randint(1, 2))
