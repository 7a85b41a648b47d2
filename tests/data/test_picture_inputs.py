"""Pictures become inputs: crops of photographs, and the pictures of a folder."""

import math

import numpy as np
import pytest
import torch

from data.prepared import everything, make
from eigenlens.data import images
from eigenlens.data.inputs import Request, prepare
from eigenlens.data.split import FIT
from eigenlens.errors import EigenlensError
from eigenlens.models.load import load


@pytest.fixture(scope="module")
def dinov2():
    return load("dinov2-small")


def test_crops_of_photographs_are_held_out_by_photograph(dinov2, tmp_path):
    """Two pictures: one is fitted, the other held out; crops of one differ, and are normalised as
    the processor says.
    """
    inputs = make(dinov2, "photos", tmp_path / "w", max_length=17, max_inputs=20)
    pixels = everything(inputs)["pixel_values"]
    patch = dinov2.module.config.patch_size
    assert pixels.shape == (20, 3, 4 * patch, 4 * patch)
    assert inputs.length == 17
    assert (inputs.buckets != FIT).sum() == 4
    assert len(set(inputs.documents[inputs.buckets == FIT])) == 1
    assert not set(inputs.documents[inputs.buckets == FIT]) & set(
        inputs.documents[inputs.buckets != FIT]
    )
    assert len({crop.numpy().tobytes() for crop in pixels}) == 20
    mean, spread = (
        torch.tensor(x)[:, None, None]
        for x in (dinov2.processor.image_mean, dinov2.processor.image_std)
    )
    colours = pixels * spread + mean
    assert colours.min() >= -1e-6
    assert colours.max() <= 1 + 1e-6
    assert colours.std() > 0.1


@pytest.mark.parametrize("number", [12, 30, 60])
def test_every_picture_of_a_folder_is_used(dinov2, tmp_path, number):
    from PIL import Image

    folder = tmp_path / "pictures"
    folder.mkdir()
    for i in range(number):
        Image.new("RGB", (40, 30), (4 * i, 0, 0)).save(folder / f"{i}.png")
    inputs = make(dinov2, folder, tmp_path / "w", max_length=17, max_inputs=100, held_out=0.2)
    assert len(inputs.buckets) == 100
    assert (inputs.buckets != FIT).sum() == 20
    assert len(set(inputs.documents)) == number
    red = everything(inputs)["pixel_values"][:, 0].mean((1, 2)).numpy().round(3)
    assert len(set(red)) == number
    assert not set(red[inputs.buckets == FIT]) & set(red[inputs.buckets != FIT])
    assert np.unique(red, return_counts=True)[1].max() <= 2 * math.ceil(100 / number)


@pytest.mark.parametrize(("pictures", "number"), [(1, 1), (1, 6), (3, 2)])
def test_pictures_that_nothing_is_fitted_on_need_none_to_hold_out(
    dinov2, tmp_path, pictures, number
):
    from PIL import Image

    for i in range(pictures):
        Image.new("RGB", (40, 30), (4 * i, 0, 0)).save(tmp_path / f"{i}.png")
    request = Request((str(tmp_path),), max_length=17, max_inputs=number, held_out=0.5)
    assert (
        len(everything(prepare(dinov2, request, tmp_path, fitted=False))["pixel_values"]) == number
    )
    if pictures == 1:
        with pytest.raises(EigenlensError, match="a study needs at least"):
            prepare(dinov2, request, tmp_path)


def test_a_picture_may_be_larger_than_the_model_s_own_if_positions_are_stretched(dinov2, tmp_path):
    inputs = make(dinov2, "photos", tmp_path / "w", max_length=1601, max_inputs=3)
    assert everything(inputs)["pixel_values"].shape[2:] == (560, 560)
    assert dinov2.module.config.image_size < 560


def test_a_length_that_is_no_square_or_too_large_is_refused(dinov2, tmp_path, monkeypatch):
    with pytest.raises(
        EigenlensError, match=r"20 tokens do not form a square of patches.*17 and 26"
    ):
        make(dinov2, "photos", tmp_path / "w", max_length=20, max_inputs=8)
    most = (dinov2.module.config.image_size // dinov2.module.config.patch_size) ** 2 + 1
    over = (math.isqrt(most) + 3) ** 2 + 1
    monkeypatch.setattr(images, "_interpolates", lambda _: False)
    with pytest.raises(
        EigenlensError, match=f"{over} tokens is over the maximum of dinov2-small, {most}"
    ):
        make(dinov2, "photos", tmp_path / "w", max_length=over, max_inputs=8)


def test_what_is_no_picture_is_refused(dinov2, tmp_path):
    (tmp_path / "a.png").write_text("not a picture")
    with pytest.raises(EigenlensError, match=r"a\.png cannot be read as a picture"):
        make(dinov2, tmp_path / "a.png", tmp_path / "w", max_inputs=8)
    with pytest.raises(EigenlensError, match=r"no such data.*photos"):
        make(dinov2, "nowhere", tmp_path / "w", max_inputs=8)
