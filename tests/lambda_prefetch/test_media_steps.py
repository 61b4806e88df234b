"""Built-in steps for audio, text and video equal the libraries, and reject bombs and invalid files."""

import io
from fractions import Fraction

import numpy as np
import pytest

from superdl.lambda_prefetch.sources import SampleFailedError
from superdl.super_wire.errors import ConfigError, RecipeError
from superdl.super_wire.recipe import Recipe
from tests.lambda_prefetch.prefetching import program_of

soundfile, soxr = pytest.importorskip("soundfile"), pytest.importorskip("soxr")
tokenizers, av = pytest.importorskip("tokenizers"), pytest.importorskip("av")

NOISE = np.random.default_rng(0).uniform(-0.9, 0.9, (22050, 2))
TEXTS = ["", "one", "seven seven two unknown", "three " * 1000, "zwei \u00fcber drei"]
# Display times of frames in milliseconds: irregular, and starting late. Each frame shows its index.
STAMPS = [200, 300, 400, 450, 700, 1200, 1250, 1300, 1700, 2000]
GREY = 20


def run(recipe, data):
    return program_of(recipe, limit_pixels=1).make(data, "key")


def failure_of(recipe, data):
    with pytest.raises(SampleFailedError) as caught:
        run(recipe, data)
    return caught.value


@pytest.mark.parametrize(
    ("make", "options"),
    [
        *((Recipe.audio, options) for options in ({"rate": 0}, {"mel": 0}, {"max_seconds": 0})),
        *((Recipe.text, options) for options in ({"packed": True}, {"length": 0}, {"pad_id": 2**31})),
        *((Recipe.video, options) for options in ({"frames": 0}, {"size": 0}, {"fps": 0}, {"start": -1})),
    ],
)
def test_invalid_arguments_are_refused(tokenizer, make, options):
    good = {"frames": 2, "size": 8} if make == Recipe.video else {"rate": 8000}
    good = {"tokenizer": tokenizer} if make == Recipe.text else good
    with pytest.raises(RecipeError):
        make(**(good | options))


def audio(samples=NOISE, rate=22050, form="WAV", subtype="PCM_16"):
    held = io.BytesIO()
    soundfile.write(held, samples, rate, format=form, subtype=subtype)
    return held.getvalue()


@pytest.mark.parametrize(("form", "subtype"), [("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("OGG", "VORBIS")])
def test_samples_equal_the_libraries_samples(form, subtype):
    data = audio(form=form, subtype=subtype)
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
def test_mel_spectrograms_equal_those_of_transformers(rate, bands, window):
    audio_utils = pytest.importorskip("transformers.audio_utils")
    data = audio()
    samples = run(Recipe.audio(rate), data)
    filters = audio_utils.mel_filter_bank(
        window // 2 + 1, bands, 0, rate / 2, rate, norm="slaney", mel_scale="slaney"
    )
    expected = audio_utils.spectrogram(
        samples, audio_utils.window_function(window, "hann"), window, 160, power=2.0, mel_filters=filters,
        mel_floor=1e-10, log_mel="log",
    )  # fmt: skip
    made = run(Recipe.audio(rate, mel=bands, window=window, hop=160), data)
    assert made.dtype == np.float32
    assert made.shape == expected.shape
    assert np.allclose(made, expected, atol=2e-4)
    assert run(Recipe.audio(rate, mel=bands, mono=False), data).shape[:2] == (2, bands)


def test_audio_bombs_and_broken_files_become_tombstones():
    silence = audio(np.zeros((1_000_000, 1)), 8000, "FLAC")
    assert len(silence) < 20_000
    wav, flac = audio(), audio(form="FLAC")
    fast = bytearray(audio(np.zeros((200_000, 8)), 8000, "FLAC"))
    fast[18:20], fast[20] = b"\xff\xff", fast[20] | 0xF0  # the header's rate: 1,048,575 Hz
    fast[21] |= 0x01  # and number of samples: 2**32 and more, within the seconds that such a rate allows
    endless = bytearray(flac)
    endless[21] |= 0x0F  # the header's number of samples: the file has fewer
    cases = [
        (b"", "empty"),
        (audio(NOISE[:0]), "empty"),
        (b"no audio at all", "undecodable"),
        (silence, "too_large"),
        (bytes(endless), "too_large"),
        (bytes(fast), "too_large"),
        (audio(np.zeros((9, 40))), "too_large"),
        (wav[:1000], "undecodable"),
        (wav[:-1], "undecodable"),
        (flac[: len(flac) // 2], "undecodable"),
    ]
    for data, reason in cases:
        failure = failure_of(Recipe.audio(8000, max_seconds=60 if data != fast else 10_000), data)
        assert failure.reason == reason, (data[:20], failure.message)
    assert failure_of(Recipe.audio(8000, mel=8), audio(NOISE[:100], 8000)).reason == "too_small"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A trained tokenizer that is set to truncate and pad."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=60, special_tokens=["?"], show_progress=False)
    made.train_from_iterator(["one two three four five six seven"], trainer)
    made.enable_truncation(3)
    made.enable_padding(length=5)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_equal_the_librarys_tokens(tokenizer, text):
    own = tokenizers.Tokenizer.from_file(str(tokenizer))
    own.no_truncation()
    own.no_padding()
    ids = own.encode(text).ids
    ragged = run(Recipe.text(tokenizer), text.encode())
    assert ragged.dtype == np.int32
    assert ragged.tolist() == ids

    cut = run(Recipe.text(tokenizer, length=7, pad_id=9), text.encode())
    assert cut.tolist() == [*ids[:7], *[9] * (7 - len(ids))]

    packed = run(Recipe.text(tokenizer, length=7, packed=True, pad_id=9), text.encode())
    assert packed.shape[1] == 7
    assert packed.ravel()[: len(ids)].tolist() == ids
    assert (packed.ravel()[len(ids) :] == 9).all()
    assert packed.size - len(ids) < 7 or not ids


def test_invalid_and_long_texts_become_tombstones(tokenizer):
    for data, reason in ((b"one \xff", "undecodable"), (b" " * (16 * 2**20 + 1), "too_large")):
        assert failure_of(Recipe.text(tokenizer), data).reason == reason


def test_a_replaced_or_missing_tokenizer_is_refused(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(tokenizer.read_bytes())
    recipe = Recipe.text(path)
    path.write_text("{}")
    with pytest.raises(ConfigError, match=r"does not match the recipe's SHA-256"):
        run(recipe, b"one")
    path.unlink()
    with pytest.raises(ConfigError, match=r"FileNotFoundError"):
        run(recipe, b"one")
    with pytest.raises(RecipeError, match=r"cannot be read"):
        Recipe.text(path)


def test_a_tokenizer_with_dropout_is_refused(tmp_path):
    drawing = tokenizers.Tokenizer(
        tokenizers.models.BPE({"o": 0, "n": 1, "on": 2}, [("o", "n")], dropout=0.5)
    )
    path = tmp_path / "tokenizer.json"
    drawing.save(str(path))
    with pytest.raises(ConfigError, match=r"uses dropout"):
        run(Recipe.text(path), b"on on on")


def test_a_tokenizers_path_does_not_matter(tokenizer, tmp_path):
    moved = tmp_path / "moved.json"
    moved.write_bytes(tokenizer.read_bytes())
    assert Recipe.text(moved).digest == Recipe.text(tokenizer).digest
    assert Recipe.text(moved, length=3).digest != Recipe.text(tokenizer).digest
    moved.write_bytes(tokenizer.read_bytes() + b" ")
    assert Recipe.text(moved).digest != Recipe.text(tokenizer).digest


def video(form="matroska", codec="ffv1", pixels="bgr0", size=(48, 32), stamps=STAMPS, rate=30, **options):
    held = io.BytesIO()
    with av.open(held, "w", format=form) as file:
        stream = file.add_stream(codec, rate=rate, options=options)
        stream.width, stream.height = size
        stream.pix_fmt = pixels
        stream.codec_context.time_base = Fraction(1, 1000)
        for place, stamp in enumerate(stamps):
            drawn = np.full((size[1], size[0], 3), GREY * place, dtype=np.uint8)
            drawn[:, : size[0] // 2, 2] = 250  # the left is blue
            frame = av.VideoFrame.from_ndarray(drawn, format="rgb24")
            frame.pts, frame.time_base = stamp, Fraction(1, 1000)
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return held.getvalue()


def places(made):
    assert made.dtype == np.uint8
    return [round(float(frame[:, :, 0].mean()) / GREY) for frame in made]


@pytest.mark.parametrize(
    "written",
    [
        {},
        {"form": "mp4", "codec": "libx264", "pixels": "yuv444p", "crf": "1"},  # its frames are out of order
        {"form": "webm", "codec": "libvpx", "pixels": "yuv420p"},
    ],
)
@pytest.mark.parametrize(("fps", "start"), [(10.0, 0.0), (4.0, 0.5), (1.0, 0.0), (100.0, 0.24)])
def test_a_frame_is_the_frame_displayed_at_its_time(written, fps, start):
    times = [1000 * (start + number / fps) + STAMPS[0] for number in range(6)]
    shown = [max(place for place, stamp in enumerate(STAMPS) if stamp <= time + 1e-6) for time in times]
    made = run(Recipe.video(6, 16, fps=fps, start=start), video(**written))
    assert made.shape == (6, 16, 16, 3)
    assert places(made) == shown
    assert (made[:, :, :5, 2] > 200).all()
    assert (made[shown.index(shown[0]), :, 11:, 2] < 200).all()


def test_frames_are_spread_over_the_video():
    evenly = video(stamps=list(range(0, 1000, 100)), rate=10)
    assert places(run(Recipe.video(5, 8), evenly)) == [1, 3, 5, 7, 9]
    assert places(run(Recipe.video(2, 8), evenly)) == [2, 7]
    assert len(set(places(run(Recipe.video(20, 8), evenly)))) == 10


def test_invalid_videos_become_tombstones(tmp_path):
    secret = tmp_path / "secret.mkv"
    secret.write_bytes(video())
    mp4 = video("mp4", "libx264", "yuv420p", movflags="faststart")
    cases = [
        (b"", "empty"),
        (b"no video at all", "undecodable"),
        (mp4[: len(mp4) // 2], "undecodable"),
        (f"#EXTM3U\n#EXTINF:1,\n{secret.as_uri()}\n#EXT-X-ENDLIST\n".encode(), "undecodable"),
        (f"ffconcat version 1.0\nfile {secret}\n".encode(), "undecodable"),
    ]
    for data, reason in cases:
        assert failure_of(Recipe.video(2, 8), data).reason == reason, data[:20]
    assert failure_of(Recipe.video(2, 4096), video(size=(48, 2))).reason == "too_large"


def test_damaged_videos_fail_only_as_documented():
    whole = video("mp4", "libx264", "yuv420p")
    draw, outcomes = np.random.default_rng(0), set()
    for _ in range(150):
        broken = np.frombuffer(whole, np.uint8).copy()
        broken[draw.integers(0, len(broken), 6)] = draw.integers(0, 256, 6)
        try:
            made = run(Recipe.video(3, 8), broken.tobytes())
        except SampleFailedError as failed:
            outcomes.add(failed.reason or failed.message)
        except MemoryError:  # FFmpeg's, of an absurd size in a header
            outcomes.add("memory")
        else:
            outcomes.add(str(made.shape))
    assert outcomes <= {"(3, 8, 8, 3)", "undecodable", "too_large", "empty", "memory"}
    assert "undecodable" in outcomes


def test_frames_before_the_first_key_frame_are_not_counted():
    whole = video("mpegts", "libx264", "yuv420p", stamps=list(range(0, 1200, 100)), rate=10, g="6", bf="0")
    with av.open(io.BytesIO(whole)) as file:
        packets = [packet for packet in file.demux(video=0) if packet.dts is not None]
        held = io.BytesIO()
        with av.open(held, "w", format="mpegts") as cut:
            stream = cut.add_stream_from_template(file.streams.video[0])
            for packet in packets[2:]:
                packet.stream = stream
                cut.mux(packet)
    # Ten frames are left, of which the first four lean on what is gone.
    assert places(run(Recipe.video(3, 8, fps=10.0, start=0.55), held.getvalue())) == [7, 8, 9]
