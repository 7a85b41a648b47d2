"""Convert llama2.c's `tokenizer.bin` to a `tokenizers` file.

The binary lists pieces with scores. Its encoder repeatedly joins the two neighbours whose union has
the best score. Byte-pair encoding does the same if every way of splitting a piece into two pieces
is a merge, ranked by the score of the union. Characters without a piece become their UTF-8 bytes,
one piece each, which never join.
"""

import json
import struct
from typing import NamedTuple

SPACE = "▁"
SPECIAL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
FIRST = len(SPECIAL) + len(BYTES)  # the first id of an ordinary piece


class VocabularyPiece(NamedTuple):
    text: str
    score: float


def read_vocabulary(data: bytes, size: int) -> list[VocabularyPiece]:
    """Return the pieces, by id.

    Layout: the longest length (int32), then score (float32), length (int32), bytes of each.
    """
    pieces, offset = [], 4
    for _ in range(size):
        score, length = struct.unpack_from("<fi", data, offset)
        offset += 8
        pieces.append(VocabularyPiece(data[offset : offset + length].decode("utf-8"), score))
        offset += length
    return pieces


def tokenizer_json(pieces: list[VocabularyPiece]) -> str:
    # The binary writes a byte as the character of that number, which may be an ordinary piece too.
    texts = SPECIAL + BYTES + [piece.text.replace(" ", SPACE) for piece in pieces[FIRST:]]
    ids = {text: i for i, text in enumerate(texts)}
    content = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": i,
                "content": text,
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
            }
            | {"normalized": False}
            for i, text in enumerate(SPECIAL)
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": SPACE},
                {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [_special("<s>", 0), _sequence("A", 0)],
            "pair": [_special("<s>", 0), _sequence("A", 0), _special("<s>", 1), _sequence("B", 1)],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": ids,
            "merges": _merges(texts, [piece.score for piece in pieces], ids),
        },
    }
    return json.dumps(content)


def _merges(texts: list[str], scores: list[float], ids: dict[str, int]) -> list[tuple[str, str]]:
    """Return every (left, right) whose union is a piece, the best-scored union first."""
    ranked = sorted(range(FIRST, len(texts)), key=lambda i: -scores[i])
    splits = ((texts[i][:cut], texts[i][cut:]) for i in ranked for cut in range(1, len(texts[i])))
    return [
        (left, right)
        for left, right in splits
        if ids.get(left, 0) >= FIRST and ids.get(right, 0) >= FIRST
    ]


def _special(token: str, kind: int) -> dict[str, dict[str, object]]:
    return {"SpecialToken": {"id": token, "type_id": kind}}


def _sequence(name: str, kind: int) -> dict[str, dict[str, object]]:
    return {"Sequence": {"id": name, "type_id": kind}}
