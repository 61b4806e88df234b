"""Built-in video step, which returns the frames of a clip at given times, using FFmpeg's libraries (PyAV)."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from superdl.lambda_prefetch.custom_steps import custom_step
from superdl.lambda_prefetch.sources import fatal

try:
    import av
except ImportError as error:
    raise ImportError("video steps need the package av: pip install superdl[video]") from error

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Only self-contained formats: FFmpeg would open the files that a playlist names.
_FORMATS = "mov,mp4,matroska,webm,avi,mpegts,ogg,flv"
_MAX_FRAME_PIXELS = 2**26
_MAX_CLIP_PIXELS = 2**36  # in all decoded frames: ten minutes of 1080p
_OPTIONS = {"format_whitelist": _FORMATS}
_QUARTER_TURN = 90
_ROUNDING_S = 1e-6  # 7 / 10 s must select the frame shown at 0.7 s


@custom_step("1")
def clip(
    array: NDArray[Any], *, frames: int, size: int, fps: float = 0.0, start: float = 0.0
) -> NDArray[Any]:
    """Return upright central RGB squares of a video's frames as uint8 of shape (frames, size, size, 3).

    Args:
        array: the file's bytes, in MP4, MOV, Matroska, WebM, AVI, MPEG-TS, Ogg or FLV. Its
            first video stream is used.
        frames: number of frames. Each is the frame shown at its time, or the last frame past the end.
        size: length in pixels of the shorter side after bicubic resizing, and of the square's sides.
        fps: frames per second; 0 spreads the frames evenly, each in the middle of its part of the video.
        start: start of the clip, in seconds after the first frame. Decoding always starts at the first frame.
    """
    data = array.tobytes()
    if not data:
        raise fatal("empty", "the object is empty")
    try:
        # Read only packet headers. Nothing is decoded yet.
        ticks, times, length = _timeline(data)
        at = start + (
            np.arange(frames) / fps if fps else (np.arange(frames) + 0.5) * (length - start) / frames
        )
        numbers = np.clip(np.searchsorted(times, at + _ROUNDING_S, side="right") - 1, 0, None)
        decoded = _frames(data, ticks, set(numbers.tolist()), size)
    except MemoryError:
        raise  # not fatal(), because the video may be valid
    except (av.error.FFmpegError, RuntimeError, ValueError) as error:
        raise fatal("undecodable", f"FFmpeg cannot read the file: {error}") from error
    return np.stack([decoded[number] for number in numbers.tolist()])


def _timeline(data: bytes) -> tuple[NDArray[np.int64] | None, NDArray[np.float64], float]:
    """Return frame times in ticks (``None`` unless all are known) and in seconds, then the end in seconds."""
    with av.open(io.BytesIO(data), "r", options=_OPTIONS) as file:
        if not file.streams.video or file.streams.video[0].codec_context is None:
            raise fatal("undecodable", "the file contains no video that FFmpeg can decode")
        stream = file.streams.video[0]
        stamps, count, last, all_timed = [], 0, 0, True
        for packet in file.demux(stream):
            # Some formats, such as AVI, store no presentation times.
            stamp = packet.dts if packet.pts is None else packet.pts
            if packet.is_corrupt:
                raise fatal("undecodable", "a part of the file is truncated or corrupt")
            if stamp is None:  # the end
                continue
            count += 1
            all_timed = all_timed and packet.pts is not None
            if not packet.is_discard:
                stamps.append(stamp)
                last = max(last, stamp + (packet.duration or 0))
        if count < stream.frames:
            raise fatal("undecodable", f"only {count} of {stream.frames} frames can be read: truncated")
        if not stamps or stream.time_base is None:
            raise fatal("empty", "the video contains no frames")
        ticks = np.sort(np.array(stamps))
        seconds = (ticks - ticks[0]) * float(stream.time_base)
        return ticks if all_timed else None, seconds, float((last - int(ticks[0])) * stream.time_base)


def _frames(
    data: bytes, ticks: NDArray[np.int64] | None, indices: set[int], size: int
) -> dict[int, NDArray[Any]]:
    """Return the frames at ``indices`` (in display order), keyed by index."""
    squares = {}
    with av.open(io.BytesIO(data), "r", options=_OPTIONS) as file:
        stream = file.streams.video[0]
        stream.codec_context.thread_count = 1  # other samples use the other cores
        stream.codec_context.options = {"max_pixels": str(_MAX_FRAME_PIXELS)}
        pixels = 0
        for number, frame in enumerate(file.decode(stream)):
            pixels += frame.width * frame.height
            if pixels > _MAX_CLIP_PIXELS:
                raise fatal("too_large", f"the clip exceeds the limit of {_MAX_CLIP_PIXELS} pixels in total")
            # FFmpeg skips frames before the first key frame, so counting frames would be wrong.
            index = number if ticks is None or frame.pts is None else int(np.searchsorted(ticks, frame.pts))
            if index in indices:
                squares[index] = _square(frame, size)
                if len(squares) == len(indices):
                    return squares
    raise fatal("undecodable", f"only {len(squares)} of {len(indices)} frames can be decoded")


def _square(frame: av.VideoFrame, size: int) -> NDArray[Any]:
    short = min(frame.width, frame.height)
    width, height = (max(size, round(side * size / short)) for side in (frame.width, frame.height))
    if width * height > _MAX_FRAME_PIXELS:
        raise fatal(
            "too_large", f"frames of {frame.width}x{frame.height} would be resized to {width}x{height}"
        )
    resized = frame.reformat(width=width, height=height, format="rgb24", interpolation="BICUBIC")
    left, top = (width - size) // 2, (height - size) // 2
    square = resized.to_ndarray()[top : top + size, left : left + size]
    turned = np.rot90(square, round(frame.rotation / _QUARTER_TURN))
    return turned.copy()  # a view would keep the whole frame alive
