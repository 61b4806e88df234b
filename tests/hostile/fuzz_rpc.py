"""Fuzzers of RPCs by a client with a valid token, against a real coordinator started at first use."""

import atexit
import functools

import grpc
import redis
from google.protobuf.descriptor import FieldDescriptor

from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.coordinator_pb2_grpc import CoordinatorStub
from superdl.super_wire.display import clean_text
from superdl.super_wire.draws import pack_numbers
from superdl.super_wire.keys import report_stream
from superdl.super_wire.protocol import PROTOCOL_VERSION, installed_version
from superdl.super_wire.read_reports import ReadReport
from superdl.super_wire.recipe import Recipe
from tests.fixtures.images import write_images
from tests.fixtures.stack import Stack
from tests.hostile.fuzz_wire import INTERESTING, TEXTS, mutate

_TOKEN = "a-token-of-the-fuzzer"
_METADATA = (("authorization", f"Bearer {_TOKEN}"),)
_ENOUGH_S = 20.0
_SERVICE = pb.DESCRIPTOR.services_by_name["Coordinator"]
_METHODS = {method.name: method.input_type for method in _SERVICE.methods if method.name != "Work"}
# A status that means a bug or a dead server.
_NEVER = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_INTEGERS = (0, 1, 2, 3, 9, 1000, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**40 + 1, 2**63 - 1, 2**63, 2**64 - 1)
_RECIPES = (
    Recipe.image(resize=8, crop=8).json,
    Recipe.image(resize=8).json,
    '{"pipeline":1,"steps":[{"op":"explode"}],"augment_seed":0}',
    "[" * 2000,
)
_TEXTS = (
    "job",
    "filled",
    "another",
    "run",
    "x" * 257,
    "\U0001f600" * 700,
    *(text for text in TEXTS if len(text) < 5000 and clean_text(text) == text),
)


class _Target:
    """A coordinator with a token, one source below its only root, two open jobs and one filling job."""

    def __init__(self):
        executors = ("--executor", "local,workers", "--slots", "1")
        self.stack = Stack(environment={"SUPER_TOKEN": _TOKEN}, arguments=executors)
        root = self.stack.valkey.directory / "root"
        write_images(root, 10)
        self.stack.arguments += ("--file-roots", str(root))
        self.stack.start()
        atexit.register(self.stack.close)
        self.source = f"file://{root}"
        self.channel = grpc.insecure_channel(self.stack.address)
        self.stub = CoordinatorStub(self.channel)
        self.cache = self.stack.valkey.client()
        self.dataset = self._register()
        for job in ("job", "untouched", "filled"):
            self._open(job, fills=job == "filled")

    def _register(self):
        request = pb.RegisterDatasetRequest(
            protocol_version=PROTOCOL_VERSION, source=self.source, recipe=_RECIPES[0], run_id="run"
        )
        answer = self.stub.RegisterDataset(request, metadata=_METADATA, timeout=_ENOUGH_S)
        while not answer.ready:
            poll = pb.GetDatasetRequest(dataset_id=answer.dataset_id, listed=answer.listed, wait_s=5)
            answer = self.stub.GetDataset(poll, metadata=_METADATA, timeout=_ENOUGH_S)
        return answer

    def _open(self, job, *, fills):
        id_ = self.dataset.dataset_id
        request = pb.OpenJobRequest(dataset_id=id_, job=job, batch_size=2, replicas=1, fills=fills)
        self.stub.OpenJob(request, metadata=_METADATA, timeout=_ENOUGH_S)

    def good(self, method):
        """A valid request."""
        id_ = self.dataset.dataset_id
        return {
            "RegisterDataset": pb.RegisterDatasetRequest(
                protocol_version=PROTOCOL_VERSION, source=self.source, recipe=_RECIPES[0], run_id="run"
            ),
            "GetDataset": pb.GetDatasetRequest(dataset_id=id_),
            "GetSamples": pb.GetSamplesRequest(dataset_id=id_, start=1, with_keys=True),
            "SendOrder": pb.OrderPart(job="job", epoch=1, indices=pack_numbers(bytes(80))),
            "OpenJob": pb.OpenJobRequest(dataset_id=id_, job="job", batch_size=2, replicas=1, shuffle=True),
            "NextBatches": pb.NextBatchesRequest(job="job", position=1, count=3, yielded=1, with_keys=True),
            "FillUp": pb.FillUpRequest(job="filled", max_bytes=2**20),
            "GetBatchStatus": pb.GetBatchStatusRequest(batch_ids=[b"x" * 16]),
            "CloseJob": pb.CloseJobRequest(job="another"),
            "GetJobStats": pb.GetJobStatsRequest(jobs=["job"]),
            "EndRun": pb.EndRunRequest(exit_code=1),
        }[method]

    def ask(self, method, request):
        """Make a call. It must succeed, or fail with a status and a reason."""
        call = self.channel.unary_unary(f"/{_SERVICE.full_name}/{method}")
        self._answered(lambda: call(request, metadata=_METADATA, timeout=_ENOUGH_S), method, request)

    def work(self, messages):
        """Connect as a worker and send these messages; same requirement."""
        call = self.channel.stream_stream(f"/{_SERVICE.full_name}/Work")
        request = b" ".join(messages)
        self._answered(
            lambda: list(call(iter(messages), metadata=_METADATA, timeout=_ENOUGH_S)), "Work", request
        )

    def _answered(self, call, method, request):
        try:
            call()
        except grpc.RpcError as error:
            message = f"{method} of {request[:300]!r}: {error.code()} {error.details()}"
            if error.code() in _NEVER or not error.details():
                raise AssertionError(f"{message}\n{self.stack.log.read_text()[-3000:]}") from error

    def is_unharmed(self):
        """Assert that a job no fuzzer touches still works."""
        request = pb.NextBatchesRequest(job="untouched", count=9)
        page = self.stub.NextBatches(request, metadata=_METADATA, timeout=_ENOUGH_S)
        assert len(page.batches) == 5, page


@functools.cache
def _target():
    return _Target()


def _value(chance, field, target):  # noqa: PLR0911 # by type
    if field.type in (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64):
        return chance.choice(_INTEGERS) % 2 ** (32 if field.type == FieldDescriptor.TYPE_UINT32 else 64)
    if field.type == FieldDescriptor.TYPE_SINT64:
        return chance.choice(_INTEGERS) - 2**63
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return chance.choice((0.0, 0.001, -1.0, float("nan"), float("-inf")))
    if field.type == FieldDescriptor.TYPE_BOOL:
        return chance.random() < 0.5
    if field.type == FieldDescriptor.TYPE_BYTES:
        return chance.choice((target.dataset.dataset_id, chance.randbytes(16), chance.choice(INTERESTING)))
    if field.name == "recipe":
        return chance.choice(_RECIPES) if chance.random() < 0.5 else chance.choice(_TEXTS)
    if field.name in ("source", "key_list"):
        return chance.choice((target.source, f"{target.source}/none", f"{target.source}/../..", *_TEXTS))
    return chance.choice(_TEXTS)


def _fuzzer(method):
    def fuzz(chance):
        target = _target()
        request = target.good(method)
        if chance.random() < 0.3:
            target.ask(method, mutate(chance, request.SerializeToString()))
        else:
            for field in _METHODS[method].fields:
                if chance.random() < 0.5:
                    continue
                request.ClearField(field.name)
                times = chance.randint(0, 3) if field.is_repeated else 1
                values = [_value(chance, field, target) for _ in range(times)]
                request.MergeFrom(type(request)(**{field.name: values if field.is_repeated else values[0]}))
            target.ask(method, request.SerializeToString())
        if chance.random() < 0.05:
            target.is_unharmed()

    return fuzz


def _work(chance):
    """Connect as a worker with random fields in its hello, which replies to calls that were not made."""
    target = _target()
    hello = pb.WorkerHello(
        protocol_version=PROTOCOL_VERSION, version=installed_version(), fingerprint="a" * 32, slots=1
    )
    for field in hello.DESCRIPTOR.fields:
        if chance.random() < 0.2:
            hello.MergeFrom(pb.WorkerHello(**{field.name: _value(chance, field, target)}))
    answer = pb.WorkerAnswer(call=chance.choice(_INTEGERS[:-4]), result=chance.choice(INTERESTING))
    sent = [
        pb.FromWorker(hello=hello),
        *chance.choices(
            [pb.FromWorker(answer=answer), pb.FromWorker(heartbeat={}), pb.FromWorker(draining={})], k=3
        ),
    ]
    messages = [message.SerializeToString() for message in sent]
    target.work([mutate(chance, message) if chance.random() < 0.2 else message for message in messages])
    if chance.random() < 0.05:
        target.is_unharmed()


def _report(chance):
    """Write a read report with random fields and ids, as a reader's credentials permit."""
    target = _target()
    numbers = [chance.choice(_INTEGERS) for _ in range(12)]
    offsets = [tuple(chance.choice((0, 1, 9, 2**32 - 1)) for _ in range(chance.randint(0, 4))) for _ in "mc"]
    entry = ReadReport(*numbers, *offsets).to_fields()
    if chance.random() < 0.5:
        entry = {name: mutate(chance, value) for name, value in entry.items()}
    stream = chance.choice((report_stream("job"), report_stream("another"), report_stream("%bell")))
    forged = chance.choice(("*", "*", "*", f"{2**64 - 1}-{2**64 - 1}", f"{2**63}-5"))
    try:
        target.cache.xadd(stream, entry, id=forged)
    except redis.exceptions.ResponseError as error:  # after a forged id the stream refuses smaller ones
        if "ID" not in str(error):
            raise
    if chance.random() < 0.05:
        target.is_unharmed()


FUZZERS = {
    **{f"RPC {method}": _fuzzer(method) for method in _METHODS},
    "RPC Work": _work,
    "RPC read reports": _report,
}
