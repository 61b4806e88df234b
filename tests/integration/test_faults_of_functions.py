"""Functions that hang, raise, die, answer twice or are too few in mid-epoch, each at a given call."""

import psutil
import pytest

from superdl.super_dataset import Recipe
from superdl.super_wire.errors import BadSampleError
from tests.fixtures.faulty_function import FUNCTION, Script
from tests.fixtures.stack import Stack
from tests.fixtures.workers import until
from tests.integration.delivery import reading, train

# Small requests shortly before use: 150 samples take at least 38 calls, spread over the epoch.
SMALL_STEPS = ("--request-samples", "4", "--lookahead-batches", "4", "--function", FUNCTION)
TIMEOUT_S = 0.25  # to start a sample; a function is killed 2.5 s later


@pytest.fixture
def script(tmp_path):
    return Script(tmp_path)


@pytest.fixture
def start(script):
    """Start a stack with this many functions, which follow the script."""
    started = []

    def start(workers):
        arguments = ("--slots", str(workers), "--request-timeout-s", str(TIMEOUT_S), *SMALL_STEPS)
        started.append(Stack(arguments=arguments, environment=script.environment))
        started[-1].start()
        return started[-1]

    yield start
    for stack in started:
        stack.close()


# Far enough apart that no sample meets three of them.
FAULTS = {4: "raise", 11: "hang", 18: "die", 25: "answer twice", 32: "answer for another"}


def test_the_epoch_goes_on(start, script, images):
    for number, does in FAULTS.items():
        script.at_call(number, does)
    stack = start(2)
    train(stack, images)
    done = script.done()
    assert done.keys() == FAULTS.keys(), "not all faults occurred"
    # Faults that follow shortly are added to a count instead of logged.
    assert "the function raised RuntimeError: as the script says" in stack.log.read_text()
    ended = [pid for number, pid in done.items() if FAULTS[number] in ("hang", "die")]
    until(lambda: not any(map(psutil.pid_exists, ended)))


@pytest.mark.slow
def test_too_few_functions_delay_and_lose_nothing(start, script, images):
    """One function hangs twice. Requests that wait for it beyond their timeout are refused a slot."""
    for number in (1, 2):
        script.at_call(number, "hang")
    stack = start(1)
    train(stack, images)
    assert "the executor accepts no more requests for now" in stack.log.read_text()


REASONS = {
    "raise": "the function raised",
    "hang": "the function did not respond in time",
    "die": "the function's process ended",
}


def read_all(source, stack, *recipe, **how):
    """The labels delivered, and the errors of the other samples."""
    read, errors = [], []
    with reading(source, stack.address, *recipe, shuffle=False, **how) as (sampler, loader):
        for ref in sampler:
            try:
                read += loader.dataset[ref][1].tolist()
            except BadSampleError as error:
                errors.append(str(error))
    return read, errors


@pytest.mark.parametrize(
    "scenes",
    [
        {"00007.jpg": "raise", "00021.jpg": "die"},
        pytest.param({"00007.jpg": "hang"}, marks=pytest.mark.slow),
    ],
)
def test_samples_that_end_every_function_are_named(start, script, images, scenes):
    """Three attempts, 2.5 seconds per hang, then an error. All other samples come."""
    for name, does in scenes.items():
        script.at_sample(name, does)
    stack = start(2)
    read, errors = read_all(images, stack, batch_size=4)
    assert len(errors) == len(scenes)
    assert len(read) == 150 - 4 * len(scenes)
    for name, does in scenes.items():
        (error,) = (error for error in errors if name in error)
        assert REASONS[does] in error
    assert len(script.done()) >= 3 * len(scenes)


STUCK = """
import threading
from superdl.lambda_prefetch import custom_step
@custom_step("1")
def read(array):
    if array.tobytes() == b"7":
        threading.Event().wait()
    return array
"""


@pytest.mark.slow
def test_a_sample_that_is_decoded_for_ever_is_named_and_its_tombstone_expires(tmp_path):
    """Three attempts of one second each. All other samples come, and no worker keeps decoding it."""
    (tmp_path / "stuck_of_faults_test.py").write_text(STUCK)
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(16):
        (texts / f"{number:02d}.txt").write_text(str(number))
    key_list = tmp_path / "texts.csv"
    key_list.write_text("key,label\n" + "".join(f"{number:02d}.txt,{number}\n" for number in range(16)))
    recipe = Recipe([{"op": "custom", "name": "stuck_of_faults_test:read@1", "input": "bytes"}])
    environment = {
        "PYTHONPATH": str(tmp_path),
        "SUPER_STEP_MODULES": "stuck_of_faults_test",
        "SUPER_DECODE_TIMEOUT_S": "1",
    }
    with Stack(arguments=("--slots", "2"), environment=environment) as stack:
        read, errors = read_all(texts, stack, recipe, batch_size=1, key_list=key_list)
        assert read == [number for number in range(16) if number != 7]
        assert len(errors) == 1
        assert "07.txt" in errors[0]
        assert "decoding took longer than 1 s" in errors[0]
        with stack.valkey.client() as cache:
            lives_ms = {cache.pttl(key) for key in cache.scan_iter("super:r1:*")}
        assert sum(0 < life_ms <= 60_000 for life_ms in lives_ms) == 1
