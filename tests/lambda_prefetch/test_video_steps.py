"""The step on videos takes the frames of their times, upright, and refuses bombs, playlists and stumps."""

from __future__ import annotations

import io
from fractions import Fraction

import numpy as np
import pytest

from superdl.lambda_prefetch.sources import SampleFailedError
from superdl.lambda_prefetch.transforms import Program
from superdl.super_wire.errors import RecipeError
from superdl.super_wire.recipe import Recipe

av = pytest.importorskip("av")

# When frames are shown, in milliseconds: not at one pace, and the first one late. Each shows its place.
STAMPS = [200, 300, 400, 450, 700, 1200, 1250, 1300, 1700, 2000]
GREY = 20


def encoded(form="matroska", codec="ffv1", pixels="bgr0", size=(48, 32), stamps=STAMPS, rate=30, **options):
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


def run(recipe, data):
    program = Program(recipe, bucket="b", epoch=0, limit_pixels=1, step_modules=frozenset())
    return program.make(data, "key")


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
def test_a_frame_is_the_one_shown_at_its_time(written, fps, start):
    times = [1000 * (start + number / fps) + STAMPS[0] for number in range(6)]
    shown = [max(place for place, stamp in enumerate(STAMPS) if stamp <= time + 1e-6) for time in times]
    made = run(Recipe.video(6, 16, fps=fps, start=start), encoded(**written))
    assert made.shape == (6, 16, 16, 3)
    assert places(made) == shown
    assert (made[:, :, :5, 2] > 200).all()
    assert (made[shown.index(shown[0]), :, 11:, 2] < 200).all()


def test_frames_are_spread_over_the_whole():
    evenly = encoded(stamps=list(range(0, 1000, 100)), rate=10)
    assert places(run(Recipe.video(5, 8), evenly)) == [1, 3, 5, 7, 9]
    assert places(run(Recipe.video(2, 8), evenly)) == [2, 7]
    assert len(set(places(run(Recipe.video(20, 8), evenly)))) == 10


def test_what_is_no_whole_video_is_a_tombstone(tmp_path):
    secret = tmp_path / "secret.mkv"
    secret.write_bytes(encoded())
    mp4 = encoded("mp4", "libx264", "yuv420p", movflags="faststart")
    cases = [
        (b"", "empty"),
        (b"no video at all", "undecodable"),
        (mp4[: len(mp4) // 2], "undecodable"),
        (f"#EXTM3U\n#EXTINF:1,\n{secret.as_uri()}\n#EXT-X-ENDLIST\n".encode(), "undecodable"),
        (f"ffconcat version 1.0\nfile {secret}\n".encode(), "undecodable"),
    ]
    for data, reason in cases:
        with pytest.raises(SampleFailedError) as failed:
            run(Recipe.video(2, 8), data)
        assert failed.value.reason == reason, data[:20]
    with pytest.raises(SampleFailedError, match=r"resized to") as failed:
        run(Recipe.video(2, 4096), encoded(size=(48, 2)))
    assert failed.value.reason == "too_large"


def test_broken_bytes_raise_nothing_else():
    whole = encoded("mp4", "libx264", "yuv420p")
    draw, outcomes = np.random.default_rng(0), set()
    for _ in range(150):
        broken = np.frombuffer(whole, np.uint8).copy()
        broken[draw.integers(0, len(broken), 6)] = draw.integers(0, 256, 6)
        try:
            made = run(Recipe.video(3, 8), broken.tobytes())
        except SampleFailedError as failed:
            outcomes.add(failed.reason or failed.why)
        except MemoryError:  # FFmpeg's, of an absurd size in a header
            outcomes.add("memory")
        else:
            outcomes.add(str(made.shape))
    assert outcomes <= {"(3, 8, 8, 3)", "undecodable", "too_large", "empty", "memory"}
    assert "undecodable" in outcomes


@pytest.mark.parametrize("wrong", [{"frames": 0}, {"size": 0}, {"fps": 0}, {"start": -1}])
def test_numbers_are_checked(wrong):
    with pytest.raises(RecipeError, match=r"more than 0|not before"):
        Recipe.video(**({"frames": 2, "size": 8} | wrong))


def test_frames_before_the_first_whole_picture_are_in_no_ones_place():
    whole = encoded("mpegts", "libx264", "yuv420p", stamps=list(range(0, 1200, 100)), rate=10, g="6", bf="0")
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
