"""Convolutional torsos against NumPy in float64, and the images they accept."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest

from impala_ms.nets import conv
from impala_ms.nets.conv import Nature, Shallow, image_of
from impala_ms.nets.resnet import ResNet
from tests.compiled import one_by_one
from tests.nets import reference
from tests.nets.gradients import check_slopes, randomise, value_and_gradients

TORSOS = {
    # images that are not square and leave a rest at the edge; the second section of the ResNet has
    # an even number of pixels, which is padded differently
    "shallow": (Shallow, (2, 27, 23), lambda x, w: reference.plain(x, w, (4, 2))),
    "nature": (Nature, (3, 43, 37), lambda x, w: reference.plain(x, w, (4, 2, 1))),
    "resnet": (ResNet, (2, 15, 12), reference.resnet),
}


def features_of(net, images):
    return net(ms.Tensor(net.prepare(images))).asnumpy()


def weighted_sum(net, observation, weights):
    return (net(observation) * weights).sum()


@pytest.fixture(params=TORSOS)
def torso(request, operators):
    make, shape, wanted = TORSOS[request.param]
    net, rng = make(shape), np.random.default_rng(0)
    weights = randomise(net, rng)
    pixels = rng.integers(0, 256, (5, *shape), dtype=np.uint8)
    return net, weights, pixels, wanted, rng


def test_features_agree_with_numpy(torso):
    net, weights, pixels, wanted, _ = torso
    features = wanted(pixels / 255.0, weights)
    assert features.shape == (5, net.outputs)
    assert np.abs(features).max() > 0.1
    tolerance = 1e-5 * np.abs(features).max()
    np.testing.assert_allclose(features_of(net, pixels), features, atol=tolerance)
    scaled = (pixels / 255.0).astype(np.float32)
    np.testing.assert_allclose(features_of(net, scaled), features, atol=tolerance)
    stacked = net(ms.Tensor(stacks(net, pixels))).asnumpy()
    np.testing.assert_allclose(stacked, features, atol=tolerance)
    with one_by_one():
        np.testing.assert_allclose(features_of(net, pixels), features, atol=tolerance)


def test_features_of_a_row_do_not_depend_on_its_batch(torso):
    net, _, pixels, _, _ = torso
    together = features_of(net, pixels)
    alone = np.concatenate([features_of(net, pixels[i : i + 1]) for i in range(5)])
    np.testing.assert_allclose(together, alone, atol=1e-5 * np.abs(alone).max())


def test_gradients_of_weights_agree_with_numpy(torso):
    net, weights, pixels, wanted, rng = torso
    net.set_train()
    sums = rng.normal(size=(5, net.outputs)).astype(np.float32)
    value, _, gradients = value_and_gradients(net, weighted_sum, (net.prepare(pixels), sums))
    images = pixels / 255.0

    def loss(arrays):
        return (wanted(images, arrays) * sums).sum()

    assert value == pytest.approx(loss(weights), rel=1e-4)
    check_slopes(loss, weights, gradients, rng)


def test_gradients_of_float_images_agree_with_numpy(torso):
    net, weights, pixels, wanted, rng = torso
    net.set_train()
    sums = rng.normal(size=(5, net.outputs)).astype(np.float32)
    images = (pixels / 255.0).astype(np.float32)
    inputs = net.prepare(images), sums
    _, (by_inputs,), _ = value_and_gradients(net, weighted_sum, inputs, 0)
    # prepare on the index of each pixel says from which pixel each input comes
    numbers = np.arange(images.size, dtype=np.float64).reshape(images.shape)
    by_images = np.zeros(images.shape)
    by_images.reshape(-1)[net.prepare(numbers).astype(int).reshape(-1)] = by_inputs.reshape(-1)
    check_slopes(
        lambda arrays: (wanted(arrays[0], weights) * sums).sum(),
        [images.astype(np.float64)],
        [by_images],
        rng,
    )


@pytest.mark.parametrize(
    ("make", "parameters"),
    [
        # convolutions on 4 channels at 84 x 84, and the fully connected layer
        (Shallow, (4 * 64 + 1) * 16 + (16 * 16 + 1) * 32 + (32 * 9 * 9 + 1) * 256),
        (
            Nature,
            (4 * 64 + 1) * 32 + (32 * 16 + 1) * 64 + (64 * 9 + 1) * 64 + (64 * 7 * 7 + 1) * 512,
        ),
    ],
)
def test_count_of_parameters_is_that_of_the_layers(make, parameters):
    net = make((4, 84, 84))
    assert sum(parameter.size for parameter in net.get_parameters()) == parameters


def test_resnet_has_15_convolutions_and_the_papers_count_of_parameters():
    net = ResNet((3, 72, 96))  # DMLab, as in the paper
    counts = [parameter.size for parameter in net.get_parameters()]
    kernels = [p for p in net.get_parameters() if p.ndim == 4]
    assert [kernel.shape[0] for kernel in kernels] == [16] * 5 + [32] * 10
    assert {kernel.shape[2:] for kernel in kernels} == {(3, 3)}
    # 15 convolutions, the fully connected layer of 256, and an LSTM of 256
    fully_connected = (32 * 9 * 12 + 1) * 256
    assert sum(counts) == 97_600 + fully_connected
    lstm = 4 * 256 * (256 + 256 + 1)
    assert sum(counts) + lstm == pytest.approx(1.6e6, rel=0.1)


LAYOUTS = [
    # shape of a frame, shape of the image, number of stacked frames, order of the frame's axes
    ((7, 9), (1, 7, 9), 1, (0, 1)),
    ((4, 7, 9), (4, 7, 9), 1, (0, 1, 2)),
    ((7, 9, 3), (3, 7, 9), 1, (2, 0, 1)),
    ((7, 9, 1), (1, 7, 9), 1, (2, 0, 1)),
    ((7, 9, 4), (4, 7, 9), 1, (2, 0, 1)),
    ((3, 9, 3), (3, 3, 9), 1, (2, 0, 1)),  # as many as rows
    ((7, 9, 2), (2, 7, 9), 1, (2, 0, 1)),
    ((8, 8, 8), (8, 8, 8), 1, (2, 0, 1)),
    ((7, 9), (4, 7, 9), 4, (0, 1)),
    ((8, 8), (8, 8, 8), 8, (0, 1)),
    ((7, 9, 3), (6, 7, 9), 2, (2, 0, 1)),
    ((3, 7, 9), (6, 7, 9), 2, (0, 1, 2)),
]


@pytest.mark.parametrize(("shape", "wanted", "frames", "order"), LAYOUTS)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64, np.int32, np.bool_])
def test_each_layout_is_prepared_as_channels_first(shape, wanted, frames, order, dtype):
    net = ResNet(shape if frames == 1 else (frames, *shape), sizes=(4,), outputs=3)
    assert net.image == wanted
    images = np.random.default_rng(0).integers(0, 256, (2, frames, *shape)).astype(dtype)
    x = images.transpose(0, 1, *(axis + 2 for axis in order)).reshape(2, *wanted)
    result = stacks(net, images).reshape(2, *wanted)
    assert result.dtype == (np.uint8 if dtype == np.uint8 else np.float32)
    np.testing.assert_array_equal(result, x)


@pytest.mark.parametrize("size", [2, 6, 9, 12, 16, 27])
@pytest.mark.parametrize("image", [(12, 12), (16, 16), (28, 30)])
def test_any_number_of_channels_is_found_on_either_side(size, image):
    assert image_of((*image, size)) == (True, (size, *image))
    # 12 x 12 x 12 could be either: it is read like gymnasium's images
    assert image_of((size, *image)) == (image == (size, size), (size, *image))


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((84, 84, 3), (True, (3, 84, 84))),
        ((3, 84, 84), (False, (3, 84, 84))),
        ((4, 84, 84), (False, (4, 84, 84))),  # as four stacked frames of 84 x 84
        ((84, 84, 4), (True, (4, 84, 84))),
        ((84, 84, 1), (True, (1, 84, 84))),
        ((84, 84), (False, (1, 84, 84))),
        ((210, 160, 3), (True, (3, 210, 160))),
        ((3, 210, 160), (False, (3, 210, 160))),
        ((72, 96, 3), (True, (3, 72, 96))),
        ((4, 210, 160, 3), (True, (12, 210, 160))),
        ((4, 3, 84, 84), (False, (12, 84, 84))),
        ((2, 7, 7, 3), (True, (6, 7, 7))),
    ],
)
def test_usual_images_keep_the_layout_that_checkpoints_were_trained_with(shape, wanted):
    assert image_of(shape) == wanted


@pytest.mark.parametrize("make", [Shallow, Nature, ResNet])
def test_both_layouts_of_an_image_have_the_same_features(make):
    images = np.random.default_rng(0).integers(0, 256, (2, 36, 40, 6), dtype=np.uint8)
    first, last = make((6, 36, 40)), make((36, 40, 6))
    for given, parameter in zip(first.get_parameters(), last.get_parameters(), strict=True):
        parameter.set_data(given.value())
    wanted = features_of(first, images.transpose(0, 3, 1, 2))
    assert np.abs(wanted).max() > 0.1
    np.testing.assert_array_equal(features_of(last, images), wanted)


def test_channels_overrules_the_guess():
    assert image_of((12, 12, 6), "first") == (False, (12, 12, 6))
    assert image_of((6, 12, 12), "last") == (True, (12, 6, 12))
    assert image_of((2, 6, 12, 12), "last") == (True, (24, 6, 12))
    assert image_of((12, 6), "last") == image_of((12, 6), "first") == (False, (1, 12, 6))
    assert ResNet((12, 12, 6), channels="first").image == (12, 12, 6)


@pytest.mark.parametrize("make", [Shallow, Nature, ResNet])
@pytest.mark.parametrize("channels", ["lst", 3, [16, 32, 32], None])
def test_unknown_position_of_channels_is_one_line(make, channels):
    with pytest.raises(ValueError, match="allowed are first, last, auto") as error:
        make((40, 40, 3), channels=channels)
    assert "\n" not in str(error.value)


def test_the_layout_is_logged_once(caplog):
    conv.say_layout.cache_clear()
    with caplog.at_level(logging.INFO):
        for shape, channels in (
            ((12, 12, 6), "auto"),
            ((12, 12, 6), "auto"),
            ((4, 36, 30), "auto"),
            ((6, 12, 12), "first"),
            ((12, 12), "auto"),
        ):
            ResNet(shape, channels=channels)
    assert caplog.messages == [
        "images 12x12 with 6 channels (channels last, guessed from the shape [12, 12, 6]; "
        "network.options.channels=first changes it)",
        "images 36x30 with 4 channels (channels first, guessed from the shape [4, 36, 30]; "
        "network.options.channels=last changes it)",
        "images 12x12 with 6 channels (channels first, as network.options.channels says)",
    ]


def test_stacked_frames_read_as_an_image_are_one_line():
    net = ResNet((4, 12, 3))  # 4 frames of 12 x 3, or an image with 3 channels
    with pytest.raises(ValueError, match=r"set network.options.channels=first") as error:
        net.prepare(np.zeros((2, 12, 3), np.uint8))
    assert "\n" not in str(error.value)
    net = ResNet((4, 12, 3), channels="first")
    assert net.prepare(np.zeros((2, 12, 3), np.uint8)).shape == (2, 1, 12, 3)


@pytest.mark.parametrize("make", [Shallow, Nature, ResNet])
def test_black_and_scale_apply_to_uint8(make, operators):
    net = make((40, 40), black=87, scale=50.0)
    images = np.random.default_rng(0).integers(0, 256, (2, 40, 40), dtype=np.uint8)
    wanted = features_of(net, (images - 87.0) / 50.0)
    assert np.abs(wanted).max() > 0.1
    np.testing.assert_allclose(features_of(net, images), wanted, atol=1e-5 * wanted.max())


@pytest.mark.parametrize("options", [{"scale": 0.0}, {"scale": "50"}, {"black": float("nan")}])
def test_impossible_scale_is_refused(options):
    with pytest.raises(ValueError, match="allowed are numbers, and a scale above 0"):
        Shallow((40, 40), **options)


def stacks(net, images):
    """The input that the actor makes of images with a time axis, ``[N, k, ...]``."""
    frames = [net.prepare(images[:, i]) for i in range(images.shape[1])]
    return frames[0] if len(frames) == 1 else np.stack(frames, 1)


@pytest.mark.parametrize(
    ("make", "shape", "smallest"),
    [
        (Shallow, (4, 20, 19), 20),
        (Shallow, (7, 7, 3), 20),
        (Nature, (4, 35, 84), 36),
        (Nature, (20, 20), 36),
    ],
)
def test_image_that_is_too_small_is_one_line(operators, make, shape, smallest):
    with pytest.raises(ValueError, match=f"at least {smallest} x {smallest}, got ") as error:
        make(shape)
    assert "\n" not in str(error.value)
    features_of(make((1, smallest, smallest)), np.zeros((1, 1, smallest, smallest), np.uint8))


@pytest.mark.parametrize("shape", [(4,), (), (1, 2, 3, 4, 5)])
def test_shape_that_is_not_an_image_is_refused(shape):
    with pytest.raises(ValueError, match="are not images"):
        ResNet(shape)


def test_resnet_takes_the_smallest_images(operators):
    for shape in ((1, 1), (7, 7, 3)):
        assert features_of(ResNet(shape), np.zeros((2, *shape), np.uint8)).shape == (2, 256)


ROOT = Path(__file__).resolve().parents[2]


def test_convolutions_run_at_a_sane_speed_by_default():
    """A convolution takes at most 8 times as long as a matrix product with as many operations.

    Without the setting in ``impala_ms/__init__.py`` oneDNN 3.10 takes about 20 times as long on
    AVX-512 processors.
    """
    environment = {k: v for k, v in os.environ.items() if k != "ONEDNN_MAX_CPU_ISA"}
    done = subprocess.run(
        [sys.executable, "-m", "impala_ms.probes", "convolution"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) < 8.0
