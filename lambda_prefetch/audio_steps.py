"""Built-in audio steps: waveforms (with libsndfile and soxr) and log-mel spectrograms."""

from __future__ import annotations

import functools
import io
from typing import TYPE_CHECKING, Any

import numpy as np

from superdl.lambda_prefetch.custom_steps import custom_step
from superdl.lambda_prefetch.sources import fatal

try:
    import soundfile
    import soxr
except ImportError as error:
    raise ImportError("audio steps need soundfile and soxr: pip install superdl[audio]") from error

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_CHANNELS = 32
_MAX_BYTES = 2**29  # decoded samples: 50 minutes of stereo at 22.05 kHz
_BLOCK_FRAMES = 2**16
_RIFF_HEAD = 8  # bytes of a RIFF file that its length does not count
_UNKNOWN_LENGTHS = (0, 2**32 - 1)  # written by recorders that cannot seek back
_LEAST_POWER = 1e-10
# The mel scale of Slaney's Auditory Toolbox: 200/3 Hz per mel up to 1 kHz, then 27 mels per factor of 6.4.
_LINEAR_HZ, _KNEE_HZ, _LOG_STEP = 200 / 3, 1000.0, float(np.log(6.4) / 27)


@custom_step("1")
def waveform(
    array: NDArray[Any], *, rate: int, max_seconds: float, mono: bool = True, samples: int = 0
) -> NDArray[Any]:
    """Decode an audio file to float32 in [-1, 1], shaped (channels, samples), or (samples,) if ``mono``.

    Args:
        array: the file's bytes, in any format that libsndfile supports, such as WAV, FLAC, OGG or MP3.
        rate: sample rate of the result, in samples per second.
        max_seconds: reject files that are longer, and files that would take more than 512 MiB as float32.
        mono: mix down to one channel by averaging.
        samples: truncate or zero-pad the end of the result to this length; 0 keeps the file's length.
    """
    data = array.tobytes()
    if not data:
        raise fatal("empty", "the object is empty")
    frames, source_rate = _read(data, max_seconds)
    if mono:
        frames = frames.mean(axis=1, keepdims=True)
    if source_rate != rate:
        frames = soxr.resample(frames, source_rate, rate, quality="HQ")
    if samples:
        frames = np.pad(frames[:samples], ((0, max(0, samples - len(frames))), (0, 0)))
    channels = np.ascontiguousarray(frames.T, dtype=np.float32)
    return channels[0] if mono else channels


def _read(data: bytes, max_seconds: float) -> tuple[NDArray[Any], int]:
    """Return the samples, of shape (samples, channels), and the sample rate."""
    whole = int.from_bytes(data[4:8], "little")
    if data.startswith(b"RIFF") and whole not in _UNKNOWN_LENGTHS and len(data) < whole + _RIFF_HEAD:
        raise fatal("undecodable", f"the WAV file is truncated: {len(data)} of {whole + _RIFF_HEAD} bytes")
    # The declared length may be wrong, so also check the actual length.
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            if file.channels > MAX_CHANNELS:
                raise fatal("too_large", f"{file.channels} channels exceed the limit of {MAX_CHANNELS}")
            limit = int(min(max_seconds * file.samplerate, _MAX_BYTES / (4 * file.channels)))
            declared = file.frames
            _check_length(declared, limit, max_seconds)
            blocks, count = [], 0
            while len(block := file.read(_BLOCK_FRAMES, dtype="float32", always_2d=True)):
                blocks.append(block)
                count += len(block)
                _check_length(count, limit, max_seconds)
            rate = int(file.samplerate)
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise fatal("undecodable", f"libsndfile cannot read the file: {error}") from error
    if not blocks:
        raise fatal("empty", "the file contains no samples")
    if count < declared:
        raise fatal("undecodable", f"only {count} of {declared} samples can be read: truncated or corrupt")
    return np.concatenate(blocks), rate


def _check_length(count: int, limit: int, max_seconds: float) -> None:
    if count > limit:
        raise fatal(
            "too_large",
            f"{count} or more samples exceed the limit of {limit} ({max_seconds:g} s or {_MAX_BYTES} bytes)",
        )


@custom_step("1")
def mel(
    array: NDArray[Any], *, rate: int, bands: int = 80, window: int = 400, hop: int = 160
) -> NDArray[Any]:
    """Return the natural log of the mel power as float32, (bands, frames) or (channels, bands, frames).

    Frames are centred, with reflected edges and a periodic Hann window. The mel bands are Slaney's,
    normalised to equal area, from 0 to half the sample rate. Power below 1e-10 is clipped to 1e-10.
    """
    if array.shape[-1] <= window // 2:
        raise fatal(
            "too_small", f"{array.shape[-1]} samples are too few: need more than half a window of {window}"
        )
    edges = [(0, 0)] * (array.ndim - 1) + [(window // 2, window // 2)]
    padded = np.pad(array, edges, mode="reflect")
    # Window, mel scale and norm match the defaults of librosa and transformers.
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    frames = np.lib.stride_tricks.sliding_window_view(padded, window, axis=-1)[..., ::hop, :]
    power = np.abs(np.fft.rfft(frames * hann, axis=-1)) ** 2
    banded = np.swapaxes(power @ _filters(rate, bands, window), -1, -2)
    return np.log(np.maximum(banded, _LEAST_POWER)).astype(np.float32)


@functools.lru_cache(maxsize=8)
def _filters(rate: int, bands: int, window: int) -> NDArray[np.float64]:
    """Return triangular filters of shape (frequencies, bands)."""
    knee = _KNEE_HZ / _LINEAR_HZ
    top = rate / 2
    top_mel = knee + np.log(top / _KNEE_HZ) / _LOG_STEP if top > _KNEE_HZ else top / _LINEAR_HZ
    mels = np.linspace(0, top_mel, bands + 2)
    corners = np.where(mels < knee, mels * _LINEAR_HZ, _KNEE_HZ * np.exp(_LOG_STEP * (mels - knee)))
    widths = np.diff(corners)
    slopes = corners - np.linspace(0, top, window // 2 + 1)[:, None]
    rising, falling = -slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]
    filters: NDArray[np.float64] = (
        np.maximum(0, np.minimum(rising, falling)) * 2 / (corners[2:] - corners[:-2])
    )
    return filters
