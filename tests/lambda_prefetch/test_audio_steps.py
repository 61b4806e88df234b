"""The steps on audio give what soundfile, soxr and a known mel spectrogram give, and refuse bombs."""

from __future__ import annotations

import io

import numpy as np
import pytest

from superdl.lambda_prefetch.sources import SampleFailedError
from superdl.lambda_prefetch.transforms import Program
from superdl.super_wire.errors import RecipeError
from superdl.super_wire.recipe import Recipe

soundfile = pytest.importorskip("soundfile")
soxr = pytest.importorskip("soxr")

NOISE = np.random.default_rng(0).uniform(-0.9, 0.9, (22050, 2))


def encoded(samples=NOISE, rate=22050, form="WAV", subtype="PCM_16"):
    held = io.BytesIO()
    soundfile.write(held, samples, rate, format=form, subtype=subtype)
    return held.getvalue()


def run(recipe, data):
    program = Program(recipe, bucket="b", epoch=0, limit_pixels=1, step_modules=frozenset())
    return program.make(data, "key")


@pytest.mark.parametrize(("form", "subtype"), [("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("OGG", "VORBIS")])
def test_samples_are_the_libraries(form, subtype):
    data = encoded(form=form, subtype=subtype)
    own, _ = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    assert np.array_equal(run(Recipe.audio(22050, mono=False), data), own.T)
    slower = soxr.resample(own, 22050, 16000, quality="HQ")
    assert np.array_equal(run(Recipe.audio(16000, mono=False), data), slower.T)
    alone = soxr.resample(own.mean(axis=1), 22050, 16000, quality="HQ")
    assert np.array_equal(run(Recipe.audio(16000), data), alone)
    for count in (5, 20000):
        cut = run(Recipe.audio(16000, samples=count), data)
        assert cut.shape == (count,)
        assert np.array_equal(cut[:16000], alone[:count])
        assert not cut[16000:].any()


@pytest.mark.parametrize(("rate", "bands", "window"), [(16000, 80, 400), (22050, 40, 1024)])
def test_mel_is_that_of_transformers(rate, bands, window):
    audio_utils = pytest.importorskip("transformers.audio_utils")
    data = encoded()
    samples = run(Recipe.audio(rate), data)
    filters = audio_utils.mel_filter_bank(
        window // 2 + 1, bands, 0, rate / 2, rate, norm="slaney", mel_scale="slaney"
    )
    wanted = audio_utils.spectrogram(
        samples, audio_utils.window_function(window, "hann"), window, 160, power=2.0, mel_filters=filters,
        mel_floor=1e-10, log_mel="log",
    )  # fmt: skip
    made = run(Recipe.audio(rate, mel=bands, window=window, hop=160), data)
    assert made.dtype == np.float32
    assert made.shape == wanted.shape
    assert np.allclose(made, wanted, atol=2e-4)
    assert run(Recipe.audio(rate, mel=bands, mono=False), data).shape[:2] == (2, bands)


def test_bombs_and_broken_files_are_tombstones():
    silence = encoded(np.zeros((1_000_000, 1)), 8000, "FLAC")
    assert len(silence) < 20_000
    wav, flac = encoded(), encoded(form="FLAC")
    fast = bytearray(encoded(np.zeros((200_000, 8)), 8000, "FLAC"))
    fast[18:20], fast[20] = b"\xff\xff", fast[20] | 0xF0  # the header's rate: 1,048,575 Hz
    fast[21] |= 0x01  # and number of samples: 2**32 and more, within the seconds that such a rate allows
    endless = bytearray(flac)
    endless[21] |= 0x0F  # the header's number of samples: the file has fewer
    cases = [
        (b"", "empty"),
        (encoded(NOISE[:0]), "empty"),
        (b"no audio at all", "undecodable"),
        (silence, "too_large"),
        (bytes(endless), "too_large"),
        (bytes(fast), "too_large"),
        (encoded(np.zeros((9, 40))), "too_large"),
        (wav[:1000], "undecodable"),
        (wav[:-1], "undecodable"),
        (flac[: len(flac) // 2], "undecodable"),
    ]
    for data, reason in cases:
        with pytest.raises(SampleFailedError) as failed:
            run(Recipe.audio(8000, max_seconds=60 if data != fast else 10_000), data)
        assert failed.value.reason == reason, (data[:20], failed.value.why)
    with pytest.raises(SampleFailedError, match=r"half a window"):
        run(Recipe.audio(8000, mel=8), encoded(NOISE[:100], 8000))


@pytest.mark.parametrize("wrong", [{"rate": 0}, {"rate": 8000, "mel": 0}, {"rate": 8000, "max_seconds": 0}])
def test_numbers_are_checked(wrong):
    with pytest.raises(RecipeError, match=r"more than 0"):
        Recipe.audio(**wrong)
