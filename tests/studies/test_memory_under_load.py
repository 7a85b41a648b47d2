"""Memory under load.

It does not grow with the inputs, nor with the size of a text or of a file of token ids.
"""

import json
import os
import subprocess
import sys
from itertools import islice

import numpy as np
import pytest

from eigenlens.data.datasets import text
from eigenlens.data.text import pieces
from tiny import some_text, tiny_bert

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc")
MB = 1_000_000
BEGIN = """
import json, sys, torch
from eigenlens import load, study
from eigenlens.run.memory import peak_resident_bytes, resident_bytes
from eigenlens.data.text import pieces
torch.set_num_threads(1)
given = json.loads(sys.argv[1])
"""


def apart(code, **given):
    """What code prints as JSON in a process of its own."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code, json.dumps(given)],
        capture_output=True,
        text=True,
        check=True,
        env=env,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("load")


@pytest.fixture(scope="module")
def model(place):
    return str(tiny_bert(place / "tiny"))


SOAK = """
seen = []
def progress(what, done, total):
    if what == "reading 3,000 texts":
        seen.append((done, resident_bytes()))
study(
    given["model"], given["data"], max_length=16, max_inputs=given["inputs"], batch_size=16,
    shard_size=64, rank=8, progress=progress,
)
print(json.dumps(seen))
"""


def test_memory_is_flat_over_thousands_of_inputs_after_the_first(place, model):
    data = place / "ids.npy"
    np.save(data, np.random.default_rng(0).integers(1000, 20_000, (3000, 16), dtype=np.int32))
    number, size = np.array(apart(SOAK, model=model, data=str(data), inputs=3000), dtype=float).T
    assert number[-1] == 2400 and len(number) > 100
    later = number > 800
    slope = np.polyfit(number[later], size[later], 1)[0]  # bytes an input
    one_input = 2 * 2 * 16 * 16 * 4  # the scores of all heads of one input
    assert slope < one_input / 2, f"{slope:.0f} bytes an input"
    assert size[later].max() - size[later].min() < 8 * MB


READ = """
found = []
for data in given["data"]:
    read = sum(len(piece.text) for piece in pieces([data], section=2048))
    found.append([read, peak_resident_bytes()])
print(json.dumps(found))
"""
STUDY = """
model, found = load(given["model"]), []
for data in given["data"]:
    made = study(model, data, max_length=32, max_inputs=60, only=["rows", "moments"])
    found.append([made.facts.inputs, peak_resident_bytes()])
print(json.dumps(found))
"""


def texts(place, form):
    """A text of 1 MB and one of 30 MB, of the same words.

    In paragraphs, in one line, or as texts of JSON lines.
    """
    words = (
        "\n\n".join(islice(text("python-docs"), 40))[: MB // 2].encode("ascii", "ignore").decode()
    )
    if form == "one line":
        words = " ".join(words.split())
    if form == "jsonl":
        words = (
            "\n".join(
                json.dumps({"text": part * 3}) for part in words.split("\n\n") if part.strip()
            )
            + "\n"
        )
    files = []
    for size in (MB, 30 * MB):
        files.append(place / f"{form} {size}.{'jsonl' if form == 'jsonl' else 'txt'}")
        with open(files[-1], "w", encoding="ascii") as file:
            for _ in range(size // len(words) + 1):
                file.write(words)
    return [str(file) for file in files]


@pytest.mark.parametrize("form", ["jsonl", "one line", "paragraphs"])
def test_a_large_text_is_read_to_its_end_in_the_memory_of_a_small_one(place, form):
    (few, little), (many, much) = apart(READ, data=texts(place, form))
    assert many > 20 * few
    assert much < little + 4 * MB


def test_a_large_text_is_studied_in_the_memory_of_a_small_one(place, model):
    (inputs, little), (same, much) = apart(STUDY, model=model, data=texts(place, "paragraphs"))
    assert inputs == same == 60
    assert much < little + 10 * MB


def test_ten_million_token_ids_are_mapped_and_not_copied(place, model):
    files = [place / f"{number}.npy" for number in (100_000, 10_000_000)]
    for data, number in zip(files, (100_000, 10_000_000)):
        np.save(data, np.random.default_rng(0).integers(1000, 20_000, number, dtype=np.int32))
    assert data.stat().st_size > 40 * MB
    (inputs, little), (same, much) = apart(STUDY, model=model, data=[str(data) for data in files])
    assert inputs == same == 60
    assert much < little + 10 * MB


def test_reading_stops_when_the_inputs_are_there(place):
    """What comes later in a file is not even looked at: its end is no text."""
    data = some_text(place / "then broken.txt", documents=3)
    with open(data, "ab") as file:
        file.write(b"\n" * 200_000 + b"\xff\x00")
    assert [piece.document for piece in islice(pieces([data], section=100), 2)] == [0, 1]
