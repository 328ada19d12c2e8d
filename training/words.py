"""What elements say: captions made of interface phrases, dictionary words, codes, numbers and addresses.

The dictionary (``data/words.txt``, drawn from SCOWL) is split in two, so that half of the captions of held-out screens
are made of words no training screen has ever shown.
"""

from __future__ import annotations

import random
import string
from functools import lru_cache
from pathlib import Path

# A caption, then commands that mean it without repeating it.
CONCEPTS: dict[str, tuple[str, ...]] = {
    "Language": ("switch language of current page", "switch language", "read this page in another tongue"),
    "Settings": ("change the preferences", "adjust how the app behaves", "open the options"),
    "Sign in": ("log in", "log into my account", "enter my account"),
    "Sign out": ("log out", "leave my account", "end the session"),
    "Register": ("create a new account", "sign up", "join as a new user"),
    "Search": ("look for something", "find an item", "look something up"),
    "Cart": ("view my basket", "see what I am about to buy", "show my shopping"),
    "Help": ("get assistance", "get support", "read the manual"),
    "Home": ("go to the start page", "return to the main page", "back to the front page"),
    "Save": ("keep my changes", "store the document", "write it to disk"),
    "Cancel": ("abort this", "stop without saving", "dismiss the dialog"),
    "Delete": ("remove this item", "erase it", "throw it away"),
    "Print": ("make a paper copy", "send it to the printer"),
    "Download": ("get the file", "fetch it to my computer"),
    "Upload": ("send a file to the server", "add a file from my computer"),
    "Share": ("send this to a friend", "let others see this"),
    "Profile": ("see my personal page", "view my user details"),
    "Password": ("type the secret word", "enter my passphrase"),
    "E-mail": ("type your mail address", "enter an electronic mail address"),
    "Phone": ("enter a telephone number", "type the number to call"),
    "Checkout": ("pay for the order", "complete the purchase"),
    "Dark mode": ("switch to the night theme", "make the screen darker"),
    "Notifications": ("see the latest alerts", "check what is new"),
    "Messages": ("read my inbox", "see my conversations"),
    "Calendar": ("look at my appointments", "see the schedule"),
    "Photos": ("browse my pictures", "open the gallery"),
    "Music": ("listen to songs", "play some tunes"),
    "Weather": ("see the forecast", "will it rain today"),
    "Maps": ("find directions", "get a route"),
    "Back": ("return to the previous page", "go one step back"),
    "Next": ("continue", "go one step forward", "proceed"),
    "Refresh": ("reload the page", "update the view"),
    "Full screen": ("enlarge to the whole display", "maximise the view"),
    "Volume": ("make it louder", "change the sound level"),
    "About": ("who made this", "show the version"),
    "Favourites": ("see the starred items", "show my bookmarks"),
    "Undo": ("take back the last step", "revert my last action"),
    "Filter": ("narrow the results", "show fewer results"),
    "Edit": ("modify this entry", "make changes to it"),
    "Send": ("submit the form", "deliver the message"),
}
DATA = Path(__file__).parent / "data"
PHRASES = tuple((DATA / "phrases.txt").read_text().splitlines())
ONSETS, NUCLEI, CODAS = (
    ["" if part == "_" else part for part in line.split()] for line in (DATA / "syllables.txt").read_text().splitlines()
)
invented_share = 0.0
BODY, FIRST = (line.split() for line in (DATA / "small_words.txt").read_text().splitlines())


@lru_cache(maxsize=2)
def dictionary(split: str) -> tuple[str, ...]:
    """The lower-case words of a split: every sixth word is held out ("eval"), the rest is "train"."""
    words = (DATA / "words.txt").read_text().split()
    return tuple(w for i, w in enumerate(words) if (i % 6 == 0) == (split == "eval"))


@lru_cache(maxsize=1)
def _held_out() -> frozenset[str]:
    return frozenset(dictionary("eval"))


def _cased(rng: random.Random, words: list[str]) -> str:
    style = rng.random()
    if style < 0.45:
        return " ".join(words).capitalize()
    if style < 0.75:
        return " ".join(w.capitalize() for w in words)
    if style < 0.92:
        return " ".join(words)
    return " ".join(words).upper()


@lru_cache(maxsize=1)
def _followers() -> dict[str, str]:
    """Which letters follow two letters in training words, as often as they do; a blank begins and ends a word."""
    seen: dict[str, list[str]] = {}
    for w in dictionary("train"):
        padded = f"  {w} "
        for i in range(2, len(padded)):
            seen.setdefault(padded[i - 2 : i], []).append(padded[i])
    return {k: "".join(v) for k, v in seen.items()}


def _lookalike(rng: random.Random) -> str:
    """A word of the dictionary's letter statistics (a Markov chain over three letters): two to thirteen letters."""
    follow = _followers()
    while True:
        text = "  "
        while len(text) == 2 or text[-1] != " ":
            text += rng.choice(follow[text[-2:]])
        if 2 <= len(text.strip()) <= 13:
            return text.strip()


def _syllables(rng: random.Random) -> str:
    parts = []
    for _ in range(rng.choice((1, 2, 2, 3))):
        parts += [rng.choice(ONSETS), rng.choice(NUCLEI), rng.choice(CODAS)]
    return "".join(parts)[:10]


def invented(rng: random.Random) -> str:
    """A new word, never one of the held-out dictionary: 60 % look English, 25 % can be spoken, 15 % cannot."""
    while True:
        kind = rng.random()
        if kind < 0.6:
            text = _lookalike(rng)
        elif kind < 0.85:
            text = _syllables(rng)
        else:
            text = "".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 9)))
        if text not in _held_out():
            return text


@lru_cache(maxsize=1)
def _interface_words() -> tuple[str, ...]:
    """The longer words of the interface phrases, lower-case."""
    return tuple(sorted({w for p in PHRASES for w in p.lower().split() if len(w) > 3 and w.isalpha()}))


def word(rng: random.Random, split: str) -> str:
    """One lower-case dictionary word; held-out screens take half of theirs from the training words.

    The split "interface" knows the words of interface phrases only.

    On training screens a share of ``invented_share`` is made up instead.
    """
    if split == "interface":
        return rng.choice(_interface_words())
    if invented_share and split == "train" and rng.random() < invented_share:
        return invented(rng)
    return rng.choice(dictionary("train" if split == "train" or rng.random() < 0.5 else "eval"))


def _code(rng: random.Random) -> str:
    kind = rng.randrange(7)
    letters = string.ascii_uppercase if rng.random() < 0.5 else string.ascii_lowercase
    if kind == 0:
        return "".join(rng.choices(letters, k=rng.randint(2, 7)))
    if kind == 1:
        return "".join(rng.choices(letters, k=2)) + rng.choice("-_/. ") + str(rng.randrange(10 ** rng.randint(1, 4)))
    if kind == 2:
        return "".join(rng.choices(letters + string.digits, k=rng.randint(3, 7)))
    if kind == 3:
        return "".join(rng.choices(string.ascii_letters + string.digits, k=rng.randint(3, 6)))
    if kind == 4:
        return f"{rng.choice(letters)}{rng.randrange(100)}.{rng.choice(letters)}"
    if kind == 5:
        return f"#{rng.randrange(10 ** rng.randint(2, 5))}"
    return f"{rng.choice(letters)}{rng.choice(letters)}:{rng.randrange(1000)}"


def _number(rng: random.Random) -> str:
    kind = rng.randrange(8)
    if kind == 0:
        return str(rng.randrange(10 ** rng.randint(1, 6)))
    if kind == 1:
        return f"${rng.randrange(1000)}.{rng.randrange(100):02d}"
    if kind == 2:
        return f"{rng.randrange(24):02d}:{rng.randrange(60):02d}"
    if kind == 3:
        return f"{rng.randrange(101)}%"
    if kind == 4:
        return f"{rng.randint(1, 28)}/{rng.randint(1, 12)}/{rng.randint(1990, 2030)}"
    if kind == 5:
        return f"+{rng.randrange(1, 99)} {rng.randrange(100, 999)} {rng.randrange(1000, 9999)}"
    if kind == 6:
        return f"{rng.randint(1990, 2030)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
    return f"{rng.randrange(1, 99)},{rng.randrange(1000):03d}"


def caption(rng: random.Random, split: str) -> str:
    """The visible text of one element: 1 to 24 characters of printable ASCII."""
    if split == "interface":
        return rng.choice((*CONCEPTS, *PHRASES)) if rng.random() < 0.9 else _number(rng)
    for _ in range(20):
        kind = rng.random()
        if kind < 0.10:
            text = rng.choice(tuple(CONCEPTS))
        elif kind < 0.24:
            text = rng.choice(PHRASES)
        elif kind < 0.72:
            text = _cased(rng, [word(rng, split) for _ in range(rng.choice((1, 1, 1, 2, 2, 2, 3)))])
        elif kind < 0.79:
            first = _cased(rng, [word(rng, split)])
            text = f"{first} {rng.choice(('&', '-', '+', 'and', 'of', 'for'))} {word(rng, split)}"
        elif kind < 0.83:
            text = f"{_cased(rng, [word(rng, split)])} {rng.randrange(10 ** rng.randint(1, 3))}"
        elif kind < 0.86:
            text = f"{_cased(rng, [word(rng, split)])} ({rng.randrange(100)})"
        elif kind < 0.92:
            text = _code(rng)
        elif kind < 0.96:
            text = _number(rng)
        elif kind < 0.98:
            text = f"{rng.choice(FIRST)}@{word(rng, split)}.{rng.choice(('com', 'org', 'net', 'io'))}"
        else:
            text = _cased(rng, [word(rng, split)]) + rng.choice(("...", "!", "?", ":", "'s"))
        if len(text) <= 24:
            return text
    return "OK"


def sentence(rng: random.Random, split: str, words: int) -> str:
    """Running text that names no element: filler for paragraphs and headings."""
    return " ".join(rng.choice(BODY) if rng.random() < 0.4 else word(rng, split) for _ in range(words)).capitalize()


def key(text: str) -> frozenset[str]:
    """What makes two captions confusable: the set of lower-case words, punctuation dropped."""
    cleaned = "".join(c if c.isalnum() else " " for c in text.lower())
    return frozenset(cleaned.split()) or frozenset([text])
